"""Clients lie to end rounds, or to get an honest client evicted."""

import tempfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from dordis.crypto import sharing
from dordis.errors import RoundFailed
from dordis.protocol import ClientId, Message
from dordis.protocols.secagg.masking import split_hashes
from dordis.protocols.secagg.messages import (
    CollectInput,
    DeliverShares,
    EncryptedShares,
    ShareKeys,
    Unmask,
    shares_statement,
)
from dordis.records.run_records import Evictions
from dordis.runs.retry import to_evict
from dordis.simulation.exchange import Lost, nothing_lost
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.participants import COMPLETE
from tests.adversary.reconstruct import channel
from tests.adversary.session import Foiled, Session

RULES = "the rules of eviction"
TWO_LIARS = {"colluders": 2, "threshold": 6, "quorum": 6, "tolerance": 2}
NO_DROPOUTS = {"threshold": 8, "quorum": 8, "tolerance": 0}


def frame(session: Session, liars: Collection[ClientId], lost: Lost = nothing_lost) -> str:
    """Run the round and see who has to go: do liars stay though they ended it, or go fewer of them than honest ones?"""
    parameters = session.parameters
    try:
        session.play(lost)
    except RoundFailed as failure:
        going = to_evict(failure, parameters.colluders, parameters.colluders_around)
    else:
        raise Foiled(RULES, "the round survived the lie")
    caught, honest = len(going.intersection(liars)), len(going.difference(liars))
    if 0 < caught >= honest:
        raise Foiled(RULES, f"{caught} liars and {honest} honest clients have to go")
    return f"the round ended, and {honest} honest clients have to go with {caught} liars"


def flipped(data: bytes, place: int = 0) -> bytes:
    """Alter one bit."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@attack(
    "a wrong share among the fewest answers", refused_by="the rules of eviction", stage="Unmask", checks=(names.FITS,)
)
def blame_dealer(session: Session) -> str:
    """Disclose a wrong share of the victim's self-mask when every answer is needed, so that the victim is blamed."""
    holders = sorted(session.parameters.neighbourhoods[session.victim])
    answering, silent = holders[: session.parameters.threshold], holders[session.parameters.threshold :]
    liar = answering[1]
    place = sorted(session.parameters.neighbourhoods[liar]).index(session.victim) * sharing.SHARE_BYTES
    session.corrupt(liar, Unmask, lambda reply: replace(reply, mask_shares=flipped(reply.mask_shares, place)))
    return frame(session, [liar], lambda u, request: isinstance(request, Unmask) and u in silent)


@attack(
    "a share that its dealer did not hash",
    refused_by="the rules of eviction",
    stage="DeliverShares",
    checks=(names.SHARE_FITS,),
    agreed=TWO_LIARS | {"colluders": 1},
)
def blame_holder(session: Session) -> str:
    """Send the victim shares that decrypt but do not fit their hashes, so that it is blamed when it discloses them."""
    dealer = session.peers(session.victim)[0]

    def alter(reply: EncryptedShares) -> Message:
        own = session.state(dealer)
        keys = {ClientId(u): shown for u, shown in own.advertisements.items()}
        spoiled = flipped(own.own_shares, sharing.SHARE_BYTES)  # the share of the self-mask
        _, hashes = split_hashes(session.parameters, reply.ciphertexts[session.victim])
        sent = channel(session.parameters, keys, dealer, session.victim, own.channel).encrypt(spoiled) + hashes
        unsigned = replace(reply, ciphertexts=reply.ciphertexts | {int(session.victim): sent})
        signed = session.sign(dealer, shares_statement(session.parameters, dealer, unsigned))
        return replace(unsigned, signature=signed)

    session.corrupt(dealer, ShareKeys, alter)
    silent = [u for u in session.peers(dealer) if u != session.victim][session.parameters.threshold - 2 :]
    return frame(session, [dealer], lambda u, request: isinstance(request, Unmask) and u in silent)


@attack(
    "two colluders that accuse one dealer",
    refused_by="the rules of eviction",
    stage="DeliverShares",
    graphs=(COMPLETE,),
    checks=(names.IS_LIAR,),
    agreed=TWO_LIARS,
)
def accuse_together(session: Session) -> str:
    """Have two colluders say that the victim's shares do not decrypt, so that it alone is evicted."""
    liars = session.peers(session.victim)[:2]
    accused = session.parameters.pack([session.victim])
    for liar in liars:
        session.corrupt(liar, DeliverShares, lambda reply: replace(reply, accused=accused))
    return frame(session, liars)


def end_round(session: Session, kind: type[Message], alter: Callable[..., Message]) -> str:
    """Send what is malformed at a stage where nobody may be lost, again and again."""
    liar = session.peers(session.victim)[0]
    session.corrupt(liar, kind, alter)
    return frame(session, [liar])


@attack(
    "a restart after an eviction",
    refused_by="the evictions on disk",
    stage="Invite",
    graphs=(COMPLETE,),
    checks=(names.READ_EVICTIONS,),
)
def restart(session: Session) -> str:
    """Wait until the server restarts: evicted clients would take part again."""
    session.trail.stage = "Invite"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "evictions.jsonl"
        Evictions(path).add(1, [session.victim], "it lied")
        if session.victim in Evictions(path).clients:
            raise Foiled("the evictions on disk", "it is still evicted")
    return "a liar is back after a restart"


unnamed = partial(Attack, graphs=(COMPLETE,), checks=(names.CATCH,), agreed=NO_DROPOUTS)

ATTACKS = (
    blame_dealer,
    blame_holder,
    accuse_together,
    unnamed(
        "a malformed upload in every round",
        "A liar sends an upload that is too short: the round ends as if clients had dropped out.",
        partial(end_round, kind=CollectInput, alter=lambda reply: replace(reply, vector=bytes(reply.vector)[:-1])),
        refused_by="the rules of eviction",
        stage="CollectInput",
    ),
    unnamed(
        "a wrong signature in every round",
        "A liar signs its shares wrongly: the round ends as if clients had dropped out.",
        partial(end_round, kind=ShareKeys, alter=lambda reply: replace(reply, signature=bytes(64))),
        refused_by="the rules of eviction",
        stage="ShareKeys",
    ),
    restart,
)
