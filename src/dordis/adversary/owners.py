"""What the client's owner does not allow: parameters outside the policy, and one participation too many."""

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import msgspec

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.forms import enter
from dordis.adversary.participants import (
    BEACON,
    BITS,
    COMPLETE,
    DIM,
    EARLIER,
    INDEX,
    NEW_RUN,
    RUN,
    SPARSE,
    careful_owner,
    invitation,
    lenient,
)
from dordis.adversary.session import SET_UP, Session
from dordis.federation.owner import Owner
from dordis.federation.participation import MemoryParticipation, OwnerBudget
from dordis.federation.policy import Policy
from dordis.privacy import gdp, skellam
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.xnoise import Scheme
from dordis.protocols.costs import round_cost
from dordis.protocols.distributed_dp import encoding_of
from dordis.protocols.parameters import SEMI_HONEST
from dordis.rounds.invitation import SendModel
from dordis.rounds.model import ModelBytes

BUDGET = (1.0, 1e-5)
PIECEMEAL = ModelBytes.of([1.0, 3.0])
MANY = 2**24
"""So many graphs, each with a chance of 2^-40 to fail, take more than delta."""
SMALL = DSkellam(Grid(DIM, 1, 1.0, BITS), 2.0, skellam.sensitivity(1.0, 2.0, DIM).squared)
"""For updates that are clipped, so that noise can hide them."""
NOISY: Mapping[str, Any] = {"encoding": encoding_of(SMALL, bytes(32)), "variances": [2000]}


def with_bit(scale: int, variance: int) -> dict[str, Any]:
    """Return what is agreed on where the round also sums a clipping bit, of this scale and noise."""
    return {"encoding": encoding_of(SMALL, bytes(32), scale), "ends": [DIM, DIM + 1], "variances": [2000, variance]}


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


def send_pieces(session: Session, policy: Policy) -> str:
    """Send the victim a model in three pieces."""
    session.give_owner(careful_owner(session.victim, policy))
    session.ask(session.victim, invitation(session.parameters, PIECEMEAL))
    for offset in range(3):
        session.ask(session.victim, SendModel(offset, PIECEMEAL.data[offset : offset + 1]))
    return "the victim wrote more pieces to its journal than its owner allows"


def outside_policy(line: str, text: str, check: str, policy: Policy, agreed: Mapping[str, Any]) -> Attack:
    """Return the row of one line of the policy: the parameters keep all rules, and break this line."""
    return Attack(
        f"outside the owner's policy: {line}",
        text,
        lambda session: enter(session, careful_owner(session.victim, policy)),
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


@attack("the same round id again", checks=(names.MACHINE,), graphs=(COMPLETE,))
def upload_again(session: Session) -> str:
    """Run a round that the victim has counted once more, its state lost: a second upload for nothing."""
    owner = careful_owner(session.victim, participation=MemoryParticipation(cap=1))
    upload_for(session.another(), owner)
    return upload_for(session, owner)


@attack("a participation beyond the policy's cap", checks=(names.CAP,), graphs=(COMPLETE,))
def upload_beyond_policy(session: Session) -> str:
    """Ask for two rounds where the owner's policy, but not the count of participations, allows one."""
    owner = careful_owner(session.victim, lenient(participations=1))
    upload_for(session.another(round=EARLIER), owner)
    return upload_for(session, owner)


@attack("trainings that no round counts", checks=(names.TRAININGS,), graphs=(COMPLETE,))
def train_again(session: Session) -> str:
    """Have the victim train, let the round end before its upload, and ask again with another model."""
    owner = careful_owner(session.victim, lenient(trainings=2))
    for index in range(INDEX + 1, INDEX + 4):
        other = session.another(round=RUN + index.to_bytes(8, "big"))
        other.give_owner(owner)
        other.invite(session.victim, other.parameters)
    return "the victim trained once more than its owner allows"


@attack("rounds failed on purpose to spend a client's budget", checks=(names.SPENT,), graphs=(COMPLETE,), agreed=NOISY)
def upload_beyond_budget(session: Session) -> str:
    """Have the victim upload, let the round fail, and ask again: its ledger has charged nothing, and the owner has."""
    budget = OwnerBudget(*BUDGET)
    counted = MemoryParticipation()
    owner = careful_owner(session.victim, Policy(epsilon=budget.epsilon, delta=budget.delta), participation=counted)
    while budget.covers(counted.spent().plus(round_cost(session.parameters))):
        index = (INDEX + 1 + counted.count()).to_bytes(8, "big")
        upload_for(session.another(round=RUN + index), owner)
    return upload_for(session, owner)


@attack("an upload that was paid for at the invitation only", checks=(names.SPENT,), graphs=(COMPLETE,), agreed=NOISY)
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


def enter_dear(session: Session) -> str:
    """Enter a round that costs more than a budget allows."""
    return enter(session, careful_owner(session.victim, Policy(colluders=0, epsilon=BUDGET[0], delta=BUDGET[1])))


NO_NOISE = lenient(mechanisms=frozenset({"none"}))

# Each line, why it is there, its check, a policy, and what is agreed on against it.
POLICY: tuple[tuple[str, str, str, Policy, dict[str, Any]], ...] = (
    ("modes", "The server is to be trusted more than the owner does.", "check_mode", lenient(), {"mode": SEMI_HONEST}),
    ("cohort", "The cohort is too small to hide in.", "check_cohort", lenient(cohort=9), {}),
    ("quorum", "Too few clients need to answer.", "check_quorum", lenient(quorum=Fraction(3, 4)), {}),
    ("colluders", "The noise makes up for too few colluders.", "check_colluders", lenient(colluders=2), {}),
    ("bits", "The upload is larger than the owner pays for.", "check_bits", lenient(bits=15), {}),
    ("mechanisms", "Updates are encoded in a way that nobody accounted for.", "check_mechanism", NO_NOISE, {}),
    ("schemes", "Noise is divided so that dropouts take it away.", "check_scheme", lenient(), {"scheme": Scheme.ORIG}),
    ("variance", "There is less noise than the owner asks for.", "check_variance", lenient(variance=Fraction(65)), {}),
    ("noise", "There is less noise than a sensitivity asks for.", "check_noise", lenient(noise=Fraction(2)), {}),
    ("epsilon", "The owner has said nothing about a budget.", "check_budgeted", Policy(), {}),
)

in_bit = partial(Attack, graphs=(COMPLETE,))

participation = partial(Attack, checks=(names.CAP,), graphs=(COMPLETE,))

ATTACKS = (
    *(outside_policy(*line) for line in POLICY),
    participation(
        "a participation beyond the cap",
        "The victim has taken part as often as its owner allows and is asked once more: privacy is spent twice.",
        upload_beyond_cap,
    ),
    participation(
        "a participation hidden by a new run id",
        "The server begins a new run, in which the victim seems not to have taken part: privacy is spent twice.",
        upload_beyond_cap,
        agreed={"run": NEW_RUN},
    ),
    upload_again,
    upload_beyond_policy,
    train_again,
    upload_beyond_budget,
    upload_in_two_rounds,
    in_bit(
        "a clipping bit without noise",
        "The update has all the noise that it needs; the bit of the same round, with a large scale, has none.",
        enter_dear,
        overlapping=(names.AFFORDABLE,),
        agreed=with_bit(2**12, 1),
    ),
    Attack(
        "a sparse graph that was drawn under many indices",
        "The server passes over indices until colluders surround the victim; each is a chance that delta must cover.",
        enter_dear,
        overlapping=(names.AFFORDABLE,),
        graphs=(SPARSE,),
        agreed={**NOISY, "index": MANY, "beacon": BEACON.value(MANY)},
    ),
    in_bit(
        "a clipping bit below the noise that the owner asks for",
        "The policy asks for noise in every release, and the one of the bit is forgotten.",
        lambda session: enter(session, careful_owner(session.victim, lenient(noise=Fraction(1)))),
        checks=(names.POLICY + "check_noise",),
        agreed=with_bit(2**12, 64),
    ),
    in_bit(
        "a clipping bit of a huge scale",
        "The bit has a scale of 2^14, so that it fills the ring and tells more than whether a norm is large.",
        lambda session: enter(session, careful_owner(session.victim)),
        checks=(names.POLICY + "check_bit",),
        agreed=with_bit(2**14, 10**9),
    ),
    in_bit(
        "an update that is longer than the owner has memory for",
        "A short sum is to be unfolded to 2^31 coordinates, which is 16 GiB.",
        lambda session: accept_size(session, lenient(), dim=1 << 31),
        checks=(names.POLICY + "check_coordinates",),
    ),
    in_bit(
        "a model that is larger than the owner has memory for",
        "The victim is to keep a model of 16 GiB, and to write it to its journal.",
        lambda session: accept_size(session, lenient(), model_bytes=1 << 34),
        checks=(names.POLICY + "check_model_bytes",),
    ),
    in_bit(
        "a model in more pieces than the owner allows",
        "Each piece costs the victim a record of its journal, and its owner has room for few.",
        lambda session: send_pieces(session, lenient(pieces=2)),
        checks=(names.POLICY + "check_pieces",),
    ),
    in_bit(
        "a protocol that the owner does not allow",
        "The server invites to a sum in the clear.",
        lambda session: accept_protocol(session, "plaintext"),
        overlapping=(names.INVITATION + "check_protocol", names.POLICY + "check_protocol"),
    ),
)
