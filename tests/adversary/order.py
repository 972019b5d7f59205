"""The server sends requests out of order: disclosure too early, without agreement, or again for another U3."""

from functools import partial

from dordis.protocol import Message
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg.messages import CollectInput, PrepareInput
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import send, unmask
from tests.adversary.participants import COMPLETE
from tests.adversary.reconstruct import claim_both_halves, claim_noise, claim_unmasked, disclosed, rebuild
from tests.adversary.session import SET_UP, SHARES, UPLOADS, Session, foiled_unless


@attack(
    "disclosure before the upload",
    refused_by="check_turn (UnexpectedRequest)",
    stage="Unmask",
    checks=(names.TURN,),
    after=SET_UP,
    agreed={"mode": SEMI_HONEST},
)
def disclose_before_upload(session: Session) -> str:
    """Ask the victim to unmask a U3 with itself before it uploads: its seed would be known in advance."""
    first = session.removal_order()[0]
    seeds = session.unmask(session.u2, {}, [first])[first].seeds
    foiled_unless(bool(seeds), "the rule", "no seed was due")
    return "the victim's seed was disclosed before it uploaded"


def mask_before_shares(session: Session, request: Message) -> str:
    """Have the victim mask when there is nobody yet to mask with, and complete the set-up after that."""
    session.ask(session.victim, request)
    session.open()
    session.upload()
    return claim_unmasked(session)


@attack(
    "an earlier stage after a later one",
    refused_by="check_turn (UnexpectedRequest)",
    stage="Agree",
    checks=(names.TURN,),
    after=UPLOADS,
    agreed={"mode": SEMI_HONEST},
)
def agree_after_unmasking(session: Session) -> str:
    """Name a larger U3 after a smaller one was unmasked, so that stage 5 releases the seed of noise that must stay."""
    order = session.removal_order()
    u3, victim = order[:-1], order[4]
    replies = session.finish(u3)
    for u in sorted(u3):
        session.ask(u, session.agreement(order))
    return claim_noise(session, u3, replies, victim, rebuild(session, session.seed_shares(victim, u3)))


@attack(
    "noise removal before unmasking",
    refused_by="check_turn (UnexpectedRequest)",
    stage="RemoveNoise",
    checks=(names.TURN,),
    after=UPLOADS,
)
def remove_noise_before_unmasking(session: Session) -> str:
    """Ask the victim for shares of others' seeds after it signed U3 and before it saw a quorum of signatures."""
    owing = session.removal_order()[0]
    peer = session.peers(owing)[0]
    session.agree(session.u2, [peer])
    session.seed_shares(owing, [peer])
    return "the victim gave a share of a seed before any quorum agreed on U3"


def unmask_with_and_without(session: Session, late: bool) -> str:
    """Unmask a U3 without the victim, then one with it; its upload comes in time, or late, between the two."""
    victim, others = session.victim, session.others
    session.upload(others if late else session.u2)
    keys, _ = disclosed(session, others, session.finish(others))
    if late:
        session.upload([victim])
    _, masks = disclosed(session, session.u2, session.finish(session.u2, without=[victim]))
    return claim_both_halves(session, keys[victim], masks[victim])


@attack(
    "another request at a stage that was answered",
    refused_by="check_same_request (UnexpectedRequest)",
    stage="Unmask",
    checks=(names.SAME_REQUEST,),
    after=UPLOADS,
    agreed={"mode": SEMI_HONEST},
)
def unmask_two_sets(session: Session) -> str:
    """Ask the victim to agree on a second U3, which shows that the server lies."""
    session.unmask(session.u2, {}, [session.victim])
    return unmask(session, session.u2[:-1], {})


too_early = partial(Attack, checks=(names.SETUP_COMPLETE,), after=SHARES)
both_halves = partial(Attack, overlapping=(names.CLAIM, names.TURN), after=SET_UP)

ATTACKS = (
    Attack(
        "Unmask without Agree",
        "The victim, in the malicious mode, is asked to unmask a U3 that it neither saw nor signed.",
        lambda session: unmask(session, session.u2, session.agree(session.u2, session.others)),
        refused_by="check_turn (UnexpectedRequest)",
        stage="Unmask",
        overlapping=(names.TURN, names.SAME_SURVIVORS),
        after=UPLOADS,
    ),
    disclose_before_upload,
    too_early(
        "upload before the set-up is complete",
        "The victim is asked to upload before it knows U2, so that it would add no pairwise masks.",
        partial(mask_before_shares, request=CollectInput(0)),
        refused_by="check_setup_complete (UnexpectedRequest)",
        stage="CollectInput",
    ),
    too_early(
        "masking before the set-up is complete",
        "The victim is asked to prepare its upload before it knows U2, and to upload it later.",
        partial(mask_before_shares, request=PrepareInput(0)),
        refused_by="check_setup_complete (UnexpectedRequest)",
        stage="PrepareInput",
    ),
    agree_after_unmasking,
    remove_noise_before_unmasking,
    Attack(
        "a chunk that does not exist",
        "The victim is asked to upload a chunk beyond the last, whose secrets and noise nobody agreed on.",
        partial(send, request=CollectInput(1)),
        refused_by="ProtocolClient._locate (UnexpectedRequest)",
        stage="CollectInput",
        graphs=(COMPLETE,),
        after=SET_UP,
    ),
    both_halves(
        "both parts of a mask, in two requests",
        "All clients are asked to unmask twice, with and without the victim in U3: both parts of its mask.",
        partial(unmask_with_and_without, late=False),
        refused_by="check_same_request (UnexpectedRequest)",
        stage="Agree",
    ),
    both_halves(
        "a late upload",
        "The victim's upload arrives after U3 was unmasked without it; the server asks for its self-mask as well.",
        partial(unmask_with_and_without, late=True),
        refused_by="check_same_request (UnexpectedRequest)",
        stage="Agree",
    ),
    unmask_two_sets,
)
