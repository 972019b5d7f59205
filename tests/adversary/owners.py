"""The server asks for more than the client's owner allows: parameters outside the policy, too many participations."""

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dordis.owner.participation import MemoryParticipation, OwnerBudget
from dordis.owner.policy import RECORD, Owner, Policy
from dordis.privacy import gdp, scaling
from dordis.privacy.clipping import clipping_bit
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.record_encoding import RecordEncoding
from dordis.privacy.record_encoding import sensitivity as record_sensitivity
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.costs import round_cost
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.parameters import SEMI_HONEST, Encoding
from dordis.rounds.app import RoundInfo
from dordis.rounds.invitation import SendModel
from dordis.rounds.model import ModelBytes, Numbers
from dordis.rounds.records import Places, RecordClient
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import enter
from tests.adversary.participants import (
    BEACON,
    BITS,
    COMPLETE,
    DIM,
    EARLIER,
    INDEX,
    NEW_RUN,
    RUN,
    SPARSE,
    Floats,
    Holder,
    careful_owner,
    honest_client,
    invitation,
    lenient,
)
from tests.adversary.session import SET_UP, Session

BUDGET = (1.0, 1e-5)
PIECEMEAL = ModelBytes.from_numbers([1.0, 3.0])
MANY = 2**24
"""So many graphs, each with a chance of 2^-40 to fail, take more than delta."""
SMALL = DSkellam(Grid(DIM, 1, 1.0, BITS), 2.0, scaling.sensitivity(1.0, 2.0, DIM).squared)
"""For updates that are clipped, so that noise can hide them."""
NOISY: Mapping[str, Any] = {"encoding": encoding_of(SMALL, bytes(32)), "variances": [2000]}


def with_bit(scale: int, variance: int) -> dict[str, Any]:
    """Return what is agreed on where the round also sums a clipping bit, of this scale and noise."""
    return {
        "encoding": encoding_of(SMALL, bytes(32), [clipping_bit(scale)]),
        "ends": [DIM, DIM + 1],
        "variances": [2000, variance],
    }


def accept_protocol(session: Session, protocol: str) -> str:
    """Invite the victim to a round of another protocol."""
    session.give_owner(careful_owner(session.victim))
    session.ask(session.victim, msgspec.structs.replace(invitation(session.parameters), protocol=protocol))
    return "the victim accepted a protocol that its owner does not allow"


def accept_size(session: Session, policy: Policy, **changes: int) -> str:
    """Invite the victim to a round that takes more memory than its owner gives, or that is not its application's."""
    session.give_owner(careful_owner(session.victim, policy))
    session.ask(session.victim, msgspec.structs.replace(invitation(session.parameters), **changes))
    return "the victim accepted a round of a size that its owner does not allow"


def accept_records(session: Session, policy: Policy, sampling: int) -> str:
    """Invite the victim to a round that hides single records only, sampled with probability sampling / 2^32."""
    session.give_owner(careful_owner(session.victim, policy))
    asked = invitation(session.parameters)
    terms = msgspec.structs.replace(asked.terms, records=RecordEncoding(sampling, 1, 0, 10, 10))
    session.ask(session.victim, msgspec.structs.replace(asked, terms=terms))
    return "the victim accepted records as the unit of privacy against its owner's policy"


def send_pieces(session: Session, policy: Policy) -> str:
    """Send the victim a model in three pieces."""
    session.give_owner(careful_owner(session.victim, policy))
    session.ask(session.victim, invitation(session.parameters, PIECEMEAL))
    for offset in range(3):
        session.ask(session.victim, SendModel(offset, PIECEMEAL.data[offset : offset + 1]))
    return "the victim wrote more pieces to its journal than its owner allows"


def outside_policy(
    setting: str, text: str, check: str, policy: Policy, agreed: Mapping[str, Any], stage: str = "Invite"
) -> Attack:
    """Return the attack on one setting of the policy: the parameters keep all rules of the protocol and break it."""
    return Attack(
        f"outside the owner's policy: {setting}",
        text,
        lambda session: enter(session, careful_owner(session.victim, policy)),
        refused_by=f"{check} (ParametersRefused)",
        stage=stage,
        checks=(names.POLICY + check,),
        graphs=(COMPLETE,),
        agreed=agreed,
    )


def upload_for(session: Session, owner: Owner) -> str:
    """Go on to the upload of the victim, which has this owner."""
    session.give_owner(owner)
    session.reach(SET_UP)
    session.upload([session.victim])
    return "the victim uploaded once more than its owner allows"


def upload_beyond_cap(session: Session) -> str:
    """Let the victim take part once more than its owner's one time."""
    count = MemoryParticipation(cap=1)
    count.reserve(RUN, INDEX - 1)
    return upload_for(session, careful_owner(session.victim, participation=count))


@attack(
    "the same round id again",
    refused_by="check_machine (ParametersRefused)",
    stage="CollectInput",
    checks=(names.MACHINE,),
    graphs=(COMPLETE,),
)
def upload_again(session: Session) -> str:
    """Repeat a round that the victim has already counted, after its state was lost: a second, uncounted upload."""
    owner = careful_owner(session.victim, participation=MemoryParticipation(cap=1))
    upload_for(session.another(), owner)
    return upload_for(session, owner)


@attack(
    "a participation beyond the policy's cap",
    refused_by="check_cap (ParticipationRefused)",
    stage="CollectInput",
    checks=(names.CAP,),
    graphs=(COMPLETE,),
)
def upload_beyond_policy(session: Session) -> str:
    """Ask for two rounds where the owner's policy allows one, although the participation file allows more."""
    owner = careful_owner(session.victim, lenient(participations=1))
    upload_for(session.another(round=EARLIER), owner)
    return upload_for(session, owner)


@attack(
    "trainings that are never counted",
    refused_by="check_trainings (ParametersRefused)",
    stage="Train",
    checks=(names.TRAININGS,),
    graphs=(COMPLETE,),
)
def train_again(session: Session) -> str:
    """Have the victim train, end the round before its upload, and ask again with another model."""
    owner = careful_owner(session.victim, lenient(trainings=2))
    for index in range(INDEX + 1, INDEX + 4):
        other = session.another(round=RUN + index.to_bytes(8, "big"))
        other.give_owner(owner)
        other.invite(session.victim, other.parameters)
    return "the victim trained once more than its owner allows"


@attack(
    "rounds failed on purpose to spend a client's budget",
    refused_by="check_budget (BudgetRefused)",
    stage="Invite",
    checks=(names.SPENT,),
    graphs=(COMPLETE,),
    agreed=NOISY,
)
def upload_beyond_budget(session: Session) -> str:
    """Have the victim upload, let the round fail, and ask again: the server's ledger charged nothing, the owner did."""
    budget = OwnerBudget(*BUDGET)
    counted = MemoryParticipation()
    owner = careful_owner(session.victim, Policy(epsilon=budget.epsilon, delta=budget.delta), participation=counted)
    while budget.covers(counted.spent().plus(round_cost(session.parameters))):
        index = (INDEX + 1 + counted.count()).to_bytes(8, "big")
        upload_for(session.another(round=RUN + index), owner)
    return upload_for(session, owner)


@attack(
    "two rounds that only together exceed the budget",
    refused_by="check_budget (BudgetRefused)",
    stage="CollectInput",
    checks=(names.SPENT,),
    graphs=(COMPLETE,),
    agreed=NOISY,
)
def upload_in_two_rounds(session: Session) -> str:
    """Begin two rounds before the first upload: each alone is within the budget, both together are not."""
    cost = round_cost(session.parameters).theta_squared
    epsilon = gdp.epsilon(1.5 * cost, BUDGET[1])
    owner = careful_owner(session.victim, Policy(epsilon=epsilon, delta=BUDGET[1]))
    other = session.another(round=EARLIER)
    for one in (other, session):
        one.give_owner(owner)
        one.reach(SET_UP)
    for one in (other, session):
        one.upload([one.victim])
    return "the victim uploaded twice where its budget is for one round"


class RecordHolder(Holder, RecordClient):
    """An application with ten records, all of one gradient."""

    records, width = 10, 4

    def record_gradients(self, round: RoundInfo, model: Numbers, places: Places) -> Floats:
        """Return the same row for every record."""
        return np.ones((self.width, DIM))


def hold_records(session: Session) -> None:
    """Give everyone in a round an application with records."""
    for u, app in session.apps.items():
        session.apps[u] = RecordHolder(app.update)
        own = honest_client(u, session.apps[u], lambda round, u=u: session.journals[u])
        session.parties[u] = session.honest[u] = own


def sampled(events: int) -> Encoding:
    """Return the encoding of a run planned for so many events, in each of which a record is one of sixteen."""
    records = RecordEncoding(sampling=1 << 28, length=1 << 22, shift=20, records=RecordHolder.records, events=events)
    mechanism = DSkellam(Grid(DIM, 1, 1.0, BITS), 4.0, record_sensitivity(4.0, DIM))
    return encoding_of(mechanism, bytes(32), (), records)


@attack(
    "more samples of records than were planned",
    refused_by="check_planned (ParametersRefused)",
    stage="Invite",
    checks=(names.PLANNED,),
    graphs=(COMPLETE,),
    agreed={"encoding": sampled(10_000), "variances": [2000]},
)
def go_beyond_plan(session: Session) -> str:
    """Plan a run of ten samples of records, which the owner's budget covers, and after a round plan ten thousand."""
    policy = Policy(epsilon=BUDGET[0], delta=BUDGET[1], units=frozenset({RECORD}))
    owner = careful_owner(session.victim, policy)
    for one in (session.another(round=EARLIER, encoding=sampled(10)), session):
        hold_records(one)
        upload_for(one, owner)
    return "the victim uploaded in a run of more samples than its budget was charged for"


def enter_dear(session: Session) -> str:
    """Enter a round that costs more than a budget allows."""
    return enter(session, careful_owner(session.victim, Policy(colluders=0, epsilon=BUDGET[0], delta=BUDGET[1])))


NO_NOISE = lenient(mechanisms=frozenset({"none"}))

# Setting, what breaking it gains, its check, a policy, parameters that break it, stage if it is not the invitation.
POLICY: tuple[tuple[Any, ...], ...] = (
    ("modes", "The mode trusts the server more than the owner does.", "check_mode", lenient(), {"mode": SEMI_HONEST}),
    ("cohort", "The cohort is too small to hide in.", "check_cohort", lenient(cohort=9), {}),
    ("quorum", "Too few clients need to answer.", "check_quorum", lenient(quorum=Fraction(3, 4)), {}, "AdvertiseKeys"),
    ("colluders", "The noise compensates for too few colluders.", "check_colluders", lenient(colluders=2), {}),
    (
        "bits",
        "The upload has more bits a coordinate than the owner allows.",
        "check_bits",
        lenient(bits=15),
        {},
    ),
    (
        "mechanisms",
        "Updates are encoded by a mechanism that the owner does not allow.",
        "check_mechanism",
        NO_NOISE,
        {},
    ),
    ("schemes", "The noise is divided so that dropouts reduce it.", "check_scheme", lenient(), {"scheme": Scheme.ORIG}),
    (
        "variance",
        "There is less noise than the owner asks for.",
        "check_variance",
        lenient(variance=Fraction(65)),
        {},
        "AdvertiseKeys",
    ),
    (
        "noise",
        "There is less noise in units of the sensitivity than the owner asks for.",
        "check_noise",
        lenient(noise=Fraction(2)),
        {},
    ),
    ("epsilon", "The owner has set no budget.", "check_budgeted", Policy(), {}),
)

in_bit = partial(Attack, graphs=(COMPLETE,))

participation = partial(Attack, checks=(names.CAP,), graphs=(COMPLETE,))

ATTACKS = (
    *(outside_policy(*line) for line in POLICY),
    participation(
        "a participation beyond the cap",
        "The victim has no participation left and is asked to take part once more.",
        upload_beyond_cap,
        refused_by="check_cap (ParticipationRefused)",
        stage="CollectInput",
    ),
    participation(
        "a participation hidden by a new run id",
        "The server begins a new run, in which the victim has not taken part yet, to pass its owner's cap.",
        upload_beyond_cap,
        refused_by="check_cap (ParticipationRefused)",
        stage="CollectInput",
        agreed={"run": NEW_RUN},
    ),
    upload_again,
    upload_beyond_policy,
    train_again,
    upload_beyond_budget,
    upload_in_two_rounds,
    go_beyond_plan,
    in_bit(
        "a clipping bit without noise",
        "The update has enough noise; the clipping bit of the same round, with a large scale, has none.",
        enter_dear,
        refused_by="check_budget (BudgetRefused)",
        stage="Invite",
        overlapping=(names.AFFORDABLE,),
        agreed=with_bit(2**12, 1),
    ),
    Attack(
        "a sparse graph that was drawn under many indices",
        "The server skips round indices until colluders surround the victim; delta must cover each try.",
        enter_dear,
        refused_by="check_budget (BudgetRefused)",
        stage="AdvertiseKeys",
        overlapping=(names.AFFORDABLE,),
        graphs=(SPARSE,),
        agreed={**NOISY, "index": MANY, "beacon": BEACON.value(MANY)},
    ),
    in_bit(
        "a clipping bit below the noise that the owner asks for",
        "The policy asks for noise in every release, and the clipping bit has too little.",
        lambda session: enter(session, careful_owner(session.victim, lenient(noise=Fraction(1)))),
        refused_by="check_noise (ParametersRefused)",
        stage="Invite",
        checks=(names.POLICY + "check_noise",),
        agreed=with_bit(2**12, 64),
    ),
    in_bit(
        "a clipping bit of a huge scale",
        "The bit has a scale of 2^14, so that it fills the ring and reveals more than whether a norm is large.",
        lambda session: enter(session, careful_owner(session.victim)),
        refused_by="check_further_scales (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.POLICY + "check_further_scales",),
        agreed=with_bit(2**14, 10**9),
    ),
    in_bit(
        "an update that is longer than the owner has memory for",
        "A short sum would be unfolded to 2^31 coordinates, which take 16 GiB.",
        lambda session: accept_size(session, lenient(), dim=1 << 31),
        refused_by="check_coordinates (ParametersRefused)",
        stage="Invite",
        checks=(names.POLICY + "check_coordinates",),
    ),
    in_bit(
        "a model that is larger than the owner has memory for",
        "The victim would store a model of 16 GiB in its journal.",
        lambda session: accept_size(session, lenient(), model_bytes=1 << 34),
        refused_by="check_model_bytes (ParametersRefused)",
        stage="Invite",
        checks=(names.POLICY + "check_model_bytes",),
    ),
    in_bit(
        "a model in more pieces than the owner allows",
        "Each piece of the model takes a record of the victim's journal, and its owner allows few.",
        lambda session: send_pieces(session, lenient(pieces=2)),
        refused_by="check_pieces (ParametersRefused)",
        stage="SendModel",
        checks=(names.POLICY + "check_pieces",),
    ),
    in_bit(
        "records instead of clients as the unit of privacy",
        "The round hides single records, where the owner asks for the whole client to be hidden.",
        lambda session: accept_records(session, lenient(), 1 << 31),
        refused_by="check_unit (ParametersRefused)",
        stage="Invite",
        checks=(names.POLICY + "check_unit",),
    ),
    in_bit(
        "records sampled more often than the owner allows",
        "Records are sampled with probability 1/2, where the owner allows 1/4: the sampling hides less.",
        lambda session: accept_records(session, lenient(units=frozenset({"record"}), sampling=Fraction(1, 4)), 1 << 31),
        refused_by="check_sampling (ParametersRefused)",
        stage="Invite",
        checks=(names.POLICY + "check_sampling",),
    ),
    in_bit(
        "a protocol that the owner does not allow",
        "The server invites to a protocol that sums in the clear.",
        lambda session: accept_protocol(session, "plaintext"),
        refused_by="check_protocol (ParametersRefused)",
        stage="Invite",
        overlapping=(names.INVITATION + "check_protocol", names.POLICY + "check_protocol"),
    ),
)
