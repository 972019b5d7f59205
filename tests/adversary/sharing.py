"""Shares are altered or withheld: by the server in transit, by their dealer, or by their holder."""

import secrets
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from msgspec.structs import replace

from dordis.crypto import sharing
from dordis.kernels.field import PRIME, lagrange
from dordis.protocol import ClientId, Message
from dordis.protocols.secagg.masking import share_hashes, split
from dordis.protocols.secagg.messages import EncryptedShares, ShareKeys, Unmask, Unmasking, shares_statement
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import isolate, show_shares, spoil_sum
from tests.adversary.reconstruct import claim_both_halves, deal, disclosed
from tests.adversary.session import SHARES, UPLOADS, Session


def spoil_delivery(session: Session, spoil: Callable[[Mapping[int, bytes], ClientId], bytes]) -> str:
    """Deliver something else of what each sender sent, and recover the update of a victim that masked with nobody."""
    sent = {int(u): session.shares[u].ciphertexts for u in session.peers(session.victim)}
    false = {u: spoil(ciphertexts, session.victim) for u, ciphertexts in sent.items()}
    return isolate(session, replace(session.delivery(session.victim), ciphertexts=false))


@attack(
    "a dealer that sends too few shares",
    refused_by="check_nobody_accused (ProtocolError)",
    stage="CollectInput",
    checks=(names.SHARE_LENGTH, names.NOBODY_ACCUSED),
    after=SHARES,
)
def deal_too_few(session: Session) -> str:
    """Leave out the dealer's last share: the victim could not disclose it later, and would be blamed."""
    dealer = session.peers(session.victim)[0]
    own = session.state(dealer)
    due, short = session.delivery(session.victim), own.own_shares[: -sharing.SHARE_BYTES]
    sent = deal(session.parameters, session.keys, dealer, session.victim, own.channel, short)
    return show_shares(session, replace(due, ciphertexts=due.ciphertexts | {int(dealer): sent}))


@attack(
    "shares altered by their dealer",
    refused_by="ChunkServer._rebuild_secrets (Unrecoverable)",
    stage="Unmask",
    checks=(names.COMMITTED_SECRET,),
)
def deal_another_secret(session: Session) -> str:
    """Share another self-mask than the one used and committed to: the sum would be off by the difference."""
    parameters, dealer = session.parameters, session.victim
    holders = sorted(parameters.neighbourhoods[dealer])

    def alter(reply: EncryptedShares) -> Message:
        own = session.state(dealer)
        keys = {ClientId(u): shown for u, shown in own.advertisements.items()}
        dealt = replace(own.secrets[0], self_mask=secrets.token_bytes(32)).shared
        rows = sharing.split(dealt, [parameters.point(v) for v in holders], parameters.threshold)
        shares = dict(zip(holders, map(sharing.to_bytes, rows), strict=True))
        own.own_shares = shares.pop(dealer)
        false = {int(v): deal(parameters, keys, dealer, v, own.channel, share) for v, share in shares.items()}
        hashes = share_hashes(parameters, dealer, dealer, own.own_shares)
        unsigned = replace(reply, ciphertexts=false, hashes=hashes)
        return replace(unsigned, signature=session.sign(dealer, shares_statement(parameters, dealer, unsigned)))

    session.corrupt(dealer, ShareKeys, alter)
    return spoil_sum(session)


@attack(
    "shares altered by their holder",
    refused_by="ChunkServer._rebuild_secrets (TooFewClients)",
    stage="Unmask",
    overlapping=(names.FITS, names.COMMITTED_SECRET),
)
def shift_share(session: Session) -> str:
    """Alter a holder's share when every answer is needed, so that another self-mask is rebuilt and the sum is off."""
    parameters, dealer = session.parameters, session.victim
    holders = sorted(parameters.neighbourhoods[dealer])
    answering, silent = holders[: parameters.threshold], holders[parameters.threshold :]
    liar = answering[1]
    weights = lagrange(np.array([parameters.point(v) for v in answering], np.uint32), np.zeros(1, np.uint32))[0]
    shift = pow(int(weights[answering.index(liar)]), -1, PRIME)
    place = sorted(parameters.neighbourhoods[liar]).index(dealer)

    def alter(reply: Unmasking) -> Message:
        shares = list(split(reply.mask_shares, sharing.SHARE_BYTES, len(reply.mask_shares) // sharing.SHARE_BYTES))
        limb = (int.from_bytes(shares[place][:4], "little") + shift) % PRIME
        shares[place] = limb.to_bytes(4, "little") + shares[place][4:]
        return replace(reply, mask_shares=b"".join(shares))

    session.corrupt(liar, Unmask, alter)
    return spoil_sum(session, lambda u, request: isinstance(request, Unmask) and u in silent)


@attack(
    "a client present in one chunk and dropped in another",
    refused_by="masks that the adversary does not know",
    stage="Unmask",
    overlapping=(names.FRESH_SECRETS, names.KEYS_DISTINCT),
    after=UPLOADS,
    agreed={"ends": [4, 8]},
)
def combine_chunks(session: Session) -> str:
    """Lose the victim in the second chunk only, and use the masking key rebuilt there on its upload of the first."""
    session.upload(session.others, chunk=1)
    _, masks = disclosed(session, session.u2, session.finish(session.u2))
    keys, _ = disclosed(session, session.others, session.finish(session.others, chunk=1))
    return claim_both_halves(session, keys[session.victim], masks[session.victim])


spoiled = partial(Attack, checks=(names.NOBODY_ACCUSED,), after=SHARES)

ATTACKS = (
    spoiled(
        "shares altered in transit",
        "The server alters every ciphertext to the victim, which is left with no peer to mask with.",
        partial(spoil_delivery, spoil=lambda sent, me: bytes([sent[me][0] ^ 1]) + sent[me][1:]),
        refused_by="check_nobody_accused (ProtocolError)",
        stage="CollectInput",
    ),
    spoiled(
        "shares cut in transit",
        "The server cuts every ciphertext to the victim, which is left with no peer to mask with.",
        partial(spoil_delivery, spoil=lambda sent, me: sent[me][: -sharing.SHARE_BYTES]),
        refused_by="check_nobody_accused (ProtocolError)",
        stage="CollectInput",
    ),
    spoiled(
        "ciphertexts exchanged between receivers",
        "The victim is sent ciphertexts for other receivers, and is left with no peer to mask with.",
        partial(spoil_delivery, spoil=lambda sent, me: next(text for v, text in sent.items() if v != me)),
        refused_by="check_nobody_accused (ProtocolError)",
        stage="CollectInput",
    ),
    spoiled(
        "shares withheld",
        "The victim is shown the true U2 without ciphertexts, and is left with no peer to mask with.",
        lambda session: isolate(session, replace(session.delivery(session.victim), ciphertexts={})),
        refused_by="check_delivered (ProtocolError)",
        stage="DeliverShares",
        checks=(names.DELIVERED,),
    ),
    deal_too_few,
    deal_another_secret,
    shift_share,
    combine_chunks,
)
