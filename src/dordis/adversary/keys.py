"""Public keys that are not their owner's: replaced, exchanged, copied, altered or of low order."""

import secrets
from functools import partial

from msgspec.structs import replace

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.forms import enter, show_keys
from dordis.adversary.participants import COMPLETE, IDS, STRANGER, keys_of
from dordis.adversary.reconstruct import channel, claim_update, deal, rebuild, unmasked, without_noise
from dordis.adversary.session import KEYS, Session
from dordis.crypto import agreement, sharing
from dordis.federation.registry import Identity, Registry
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg import statements
from dordis.protocols.secagg.masking import split
from dordis.protocols.secagg.messages import Advertisement, DeliverShares
from dordis.protocols.secagg.share_hashes import split_hashes
from dordis.protocols.secagg.state import shared_count

LOW_ORDER = (1).to_bytes(32, "little")


def new_key() -> bytes:
    """Return a public key of the server's own."""
    return agreement.public(agreement.generate())


@attack("all peers' keys replaced by the server's", checks=(names.KEYS_SIGNED, names.VERIFY), after=KEYS)
def play_all_peers(session: Session) -> str:
    """Have the victim share its secrets under the server's keys, and open its update but for its base noise."""
    parameters, victim = session.parameters, session.victim
    own = {u: agreement.generate() for u in parameters.clients if u != victim}
    show_keys(session, {u: replace(session.keys[u], channel=agreement.public(own[u]), masking=new_key()) for u in own})
    ciphertexts, peers = session.shares[victim].ciphertexts, session.peers(victim)
    sealed = {u: split_hashes(parameters, ciphertexts[u])[0] for u in peers}
    opened = {u: channel(parameters, session.keys, victim, u, own[u]).decrypt(sealed[u]) for u in peers}
    sent = {int(u): deal(parameters, session.keys, u, victim, own[u], opened[u]) for u in peers}
    session.ask(victim, DeliverShares(parameters.pack(parameters.clients), sent))
    session.upload([victim])
    count = shared_count(parameters, 0)
    parts = {u: split(shares, sharing.SHARE_BYTES, count) for u, shares in opened.items()}
    masking_key, self_mask, seed = (rebuild(session, {u: parts[u][i] for u in peers}) for i in range(count))
    update = without_noise(session, unmasked(session, self_mask, masking_key), [seed])
    return claim_update(session, update, removed=True)


@attack("two peers' keys exchanged", checks=(names.KEYS_SIGNED, names.VERIFY), after=KEYS)
def exchange_keys(session: Session) -> str:
    """Exchange the keys of two peers, with their signatures: shares would go to the wrong one of them."""
    first, second = session.parameters.clients[-2:]
    return show_keys(session, {first: session.keys[second], second: session.keys[first]})


def collude(session: Session, masking: bytes) -> str:
    """Let the last client, a colluder, sign a masking key that it should not."""
    unsigned = replace(session.keys[session.last], masking=masking)
    signed = session.sign(session.last, statements.keys(session.parameters, session.last, unsigned))
    return show_keys(session, {session.last: replace(unsigned, signature=signed)})


def respelled(key: bytes) -> bytes:
    """Set the top bit of a key, which X25519 ignores."""
    return key[:-1] + bytes([key[-1] | 0x80])


@attack("a registered key of low order", checks=(names.REGISTRY_KEYS,), graphs=(COMPLETE,))
def register_low_order(session: Session) -> str:
    """Register a VRF key outside the prime-order group: a colluder could choose among several lots a round."""
    session.trail.stage = "registration"
    Registry({STRANGER: Identity(keys_of(STRANGER).identity().signing, LOW_ORDER)})
    return "the registry took a key of low order"


false_keys = partial(Attack, checks=(names.KEYS_SIGNED, names.VERIFY), after=KEYS)

ATTACKS = (
    play_all_peers,
    exchange_keys,
    false_keys(
        "one peer's masking key replaced",
        "One peer's masking key is the server's own: it would know the mask that the victim shares with that peer.",
        lambda session: show_keys(session, {session.last: replace(session.keys[session.last], masking=new_key())}),
    ),
    false_keys(
        "a key copied by a colluder",
        "A colluder signs the victim's masking key as its own, to make masks that it does not know cancel or repeat.",
        lambda session: collude(session, session.masking_key(session.victim)),
        checks=(names.KEYS_DISTINCT,),
    ),
    false_keys(
        "a key copied in another spelling",
        "A colluder signs the victim's masking key with the ignored bit set, so that the copy does not show.",
        lambda session: collude(session, respelled(session.masking_key(session.victim))),
        checks=(names.KEYS_WELL_FORMED,),
    ),
    false_keys(
        "a key of low order",
        "A colluder signs a masking key of low order, with which the shared secret is zero whoever computes it.",
        partial(collude, masking=LOW_ORDER),
        checks=(names.KEYS_WELL_FORMED,),
    ),
    register_low_order,
    false_keys(
        "the client's own keys altered",
        "The victim is shown its own token hash altered to one whose token the server knows, and goes on.",
        lambda session: show_keys(session, {session.victim: replace(session.keys[session.victim], tokens=bytes(32))}),
        checks=(names.OWN_KEYS,),
        agreed={"mode": SEMI_HONEST},
    ),
    false_keys(
        "U1 with a client outside U",
        "The server adds a client of its own making to U1, to raise the number of those who seem to take part.",
        lambda session: show_keys(session, {STRANGER: Advertisement(new_key(), new_key(), secrets.token_bytes(32))}),
        checks=(names.SUBSET,),
        agreed={"mode": SEMI_HONEST},
    ),
    Attack(
        "U with a client outside the registry",
        "The server fills the round up with clients of its own making, whose noise it knows.",
        enter,
        checks=(names.REGISTERED,),
        agreed={"clients": (*IDS[:-1], STRANGER)},
    ),
)
