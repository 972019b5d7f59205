"""The server shows clients different U2 (those that shared secrets), U3 (those that uploaded), models or parameters."""

from functools import partial
from typing import Any

from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import isolate, show_shares
from tests.adversary.participants import COMPLETE, IDS, OTHER_MODEL, SPARE, SPARSE, forged
from tests.adversary.reconstruct import claim_noise
from tests.adversary.session import SHARES, UPLOADS, Session


def two_survivor_sets(session: Session, left_out: int) -> str:
    """Take the sum over U3 without the last by lot; show the victim one without the first `left_out` instead.

    With one dropout four are due, with none six: the fifth by lot keeps its noise under the U3 of the sum, and would
    disclose it under the one that it is shown, which nobody else has signed.
    """
    order = session.removal_order()
    u3, shown, victim = order[:-1], order[left_out:], order[4]
    replies = session.finish(u3, without=[victim])
    seed = session.unmask(shown, session.agree(shown, [victim]), [victim])[victim].seeds[0]
    return claim_noise(session, u3, replies, victim, seed)


def hide_neighbours(session: Session) -> str:
    """Show the victim a U2 in which it has nobody to mask with, all others a U3 with it."""
    return isolate(session, session.delivery(session.victim, hidden=session.peers(session.victim)))


@attack(
    "two U2: a lost peer is named in U3",
    refused_by="check_subset (ProtocolError)",
    stage="Agree",
    after=SHARES,
    checks=(names.SUBSET,),
)
def name_lost_peer(session: Session) -> str:
    """Hide a peer in U2 from the victim, which masks without it, then ask it to sign a U3 that contains the peer."""
    show_shares(session, session.delivery(session.victim, hidden=session.peers(session.victim)[:1]))
    session.finish(session.u2)
    return "the victim vouched for a U3 with a client that it was told is lost"


def two_rounds(session: Session, **changes: Any) -> str:
    """Show half of the clients other parameters, and go on as far as the uploads."""
    session.advertise(shown=dict.fromkeys(IDS[4:], forged(session.parameters, **changes)))
    session.share()
    session.open()
    session.upload()
    return "clients of two different rounds uploaded into one sum"


two_u3 = partial(Attack, checks=(names.QUORUM_SIGNED, names.ENOUGH), after=UPLOADS)
two_u2 = partial(Attack, after=SHARES)
two_parameters = partial(Attack, overlapping=(names.KEYS_SIGNED, names.NOBODY_ACCUSED), graphs=(COMPLETE,))

ATTACKS = (
    two_u3(
        "two U3 of equal size",
        "The victim is shown another dropout than the quorum, and would disclose noise that is not due.",
        partial(two_survivor_sets, left_out=1),
        refused_by="check_enough (ProtocolError)",
        stage="Unmask",
    ),
    two_u3(
        "two U3 of different size",
        "A quorum is shown a U3 with one dropout, the victim a U3 with none: it would disclose noise that must stay.",
        partial(two_survivor_sets, left_out=0),
        refused_by="check_enough (ProtocolError)",
        stage="Unmask",
    ),
    two_u2(
        "two U2: a client's neighbours are hidden from it",
        "The victim is shown a U2 without its neighbours, the others a U3 with it: it is hidden by its own noise only.",
        hide_neighbours,
        refused_by="check_neighbours (ProtocolError)",
        stage="DeliverShares",
        checks=(names.NEIGHBOURS,),
        graphs=(SPARSE,),
        # As many neighbours as may be missing.
        agreed={"clients": (*IDS, *SPARE), "degree": 4, "threshold": 4, "quorum": 6, "tolerance": 4},
    ),
    two_u2(
        "two U2: a client is shown nobody else",
        "The victim is shown a U2 of itself alone and adds no pairwise masks; the others unmask a U3 with it.",
        hide_neighbours,
        refused_by="check_enough (ProtocolError)",
        stage="DeliverShares",
        overlapping=(names.ENOUGH, names.TOLERATED, names.NEIGHBOURS),
        graphs=(COMPLETE,),
    ),
    name_lost_peer,
    two_u2(
        "U2 with more than T missing",
        "The victim is shown a U2 that lacks more than T clients: its upload would be summed with too little noise.",
        lambda session: show_shares(session, session.delivery(session.victim, hidden=session.u2[-2:])),
        refused_by="check_tolerated (TooManyDropouts)",
        stage="DeliverShares",
        checks=(names.TOLERATED,),
        agreed={"tolerance": 1},
    ),
    two_u2(
        "U2 without the client itself",
        "The victim is shown a U2 without itself and asked to upload nevertheless.",
        lambda session: show_shares(session, session.delivery(session.victim, hidden=[session.victim])),
        refused_by="check_present (ProtocolError)",
        stage="DeliverShares",
        checks=(names.PRESENT,),
    ),
    two_parameters(
        "different parameters for two clients",
        "Half of the clients are given a smaller noise variance, and both halves would be summed.",
        partial(two_rounds, variances={0: "16"}),
        refused_by="check_keys_signed (InvalidSignature)",
        stage="ShareKeys",
    ),
    two_parameters(
        "a different model for two clients",
        "Half of the clients are given another model, made so that their updates stand out in the sum.",
        partial(two_rounds, model=OTHER_MODEL.digest),
        refused_by="check_keys_signed (InvalidSignature)",
        stage="ShareKeys",
    ),
)
