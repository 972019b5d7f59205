"""What the client's owner does not allow: parameters outside the policy, and one participation too many."""

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.forms import enter
from dordis.adversary.participants import COMPLETE, EARLIER, INDEX, NEW_RUN, RUN, careful_owner
from dordis.adversary.session import SET_UP, Session
from dordis.federation.owner import Owner
from dordis.federation.participation import MemoryParticipation
from dordis.federation.policy import Policy
from dordis.privacy.xnoise import Scheme
from dordis.protocols.parameters import SEMI_HONEST


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
    owner = careful_owner(session.victim, Policy(participations=1))
    upload_for(session.another(round=EARLIER), owner)
    return upload_for(session, owner)


NO_NOISE = Policy(mechanisms=frozenset({"none"}))

# Each line, why it is there, its check, a policy, and what is agreed on against it.
POLICY: tuple[tuple[str, str, str, Policy, dict[str, Any]], ...] = (
    ("modes", "The server is to be trusted more than the owner does.", "check_mode", Policy(), {"mode": SEMI_HONEST}),
    ("cohort", "The cohort is too small to hide in.", "check_cohort", Policy(cohort=9), {}),
    ("quorum", "Too few clients need to answer.", "check_quorum", Policy(quorum=Fraction(3, 4)), {}),
    ("colluders", "The noise makes up for too few colluders.", "check_colluders", Policy(colluders=2), {}),
    ("bits", "The upload is larger than the owner pays for.", "check_bits", Policy(bits=15), {}),
    ("mechanisms", "Updates are encoded in a way that nobody accounted for.", "check_mechanism", NO_NOISE, {}),
    ("schemes", "Noise is divided so that dropouts take it away.", "check_scheme", Policy(), {"scheme": Scheme.ORIG}),
    ("variance", "There is less noise than the owner asks for.", "check_variance", Policy(variance=Fraction(65)), {}),
    ("noise", "There is less noise than a sensitivity asks for.", "check_noise", Policy(noise=Fraction(2)), {}),
)

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
)
