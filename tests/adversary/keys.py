"""Public keys are replaced, exchanged, copied, altered or of low order."""

import secrets
from functools import partial

from msgspec.structs import replace

from dordis.crypto import agreement, sharing
from dordis.identity.certificates import Identity
from dordis.identity.registry import Registry
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg.masking import shared_count, split, split_hashes
from dordis.protocols.secagg.messages import Advertisement, DeliverShares, keys_statement
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import enter, show_keys
from tests.adversary.participants import COMPLETE, IDS, STRANGER, keys_of
from tests.adversary.reconstruct import channel, claim_update, deal, rebuild, unmasked, without_noise
from tests.adversary.session import KEYS, Session

LOW_ORDER = (1).to_bytes(32, "little")


def new_key() -> bytes:
    """Return a public key of the server's own."""
    return agreement.public_key(agreement.generate())


@attack(
    "all peers' keys replaced by the server's",
    refused_by="check_keys_signed (InvalidSignature)",
    stage="ShareKeys",
    checks=(names.KEYS_SIGNED, names.VERIFY),
    after=KEYS,
)
def play_all_peers(session: Session) -> str:
    """Have the victim share its secrets under the server's keys, and recover its update with its base noise."""
    parameters, victim = session.parameters, session.victim
    own = {u: agreement.generate() for u in parameters.clients if u != victim}
    show_keys(
        session, {u: replace(session.keys[u], channel=agreement.public_key(own[u]), masking=new_key()) for u in own}
    )
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


@attack(
    "two peers' keys exchanged",
    refused_by="check_keys_signed (InvalidSignature)",
    stage="ShareKeys",
    checks=(names.KEYS_SIGNED, names.VERIFY),
    after=KEYS,
)
def exchange_keys(session: Session) -> str:
    """Exchange the keys of two peers, with their signatures: each would receive the other's shares."""
    first, second = session.parameters.clients[-2:]
    return show_keys(session, {first: session.keys[second], second: session.keys[first]})


def collude(session: Session, masking: bytes) -> str:
    """Let the last client, a colluder, sign a masking key that it should not."""
    unsigned = replace(session.keys[session.last], masking=masking)
    signed = session.sign(session.last, keys_statement(session.parameters, session.last, unsigned))
    return show_keys(session, {session.last: replace(unsigned, signature=signed)})


def respelled(key: bytes) -> bytes:
    """Set the top bit of a key, which X25519 ignores."""
    return key[:-1] + bytes([key[-1] | 0x80])


@attack(
    "a registered key of low order",
    refused_by="check_keys (InvalidKey)",
    stage="registration",
    checks=(names.REGISTRY_KEYS,),
    graphs=(COMPLETE,),
)
def register_low_order(session: Session) -> str:
    """Register a VRF key outside the prime-order group: a colluder could choose among several VRF outputs a round."""
    session.trail.stage = "registration"
    Registry({STRANGER: Identity(keys_of(STRANGER).identity().signing, LOW_ORDER)})
    return "the registry took a key of low order"


false_keys = partial(Attack, checks=(names.KEYS_SIGNED, names.VERIFY), after=KEYS)

ATTACKS = (
    play_all_peers,
    exchange_keys,
    false_keys(
        "one peer's masking key replaced",
        "Replace a peer's masking key by the server's: it would know the mask that the victim shares with that peer.",
        lambda session: show_keys(session, {session.last: replace(session.keys[session.last], masking=new_key())}),
        refused_by="check_keys_signed (InvalidSignature)",
        stage="ShareKeys",
    ),
    false_keys(
        "a key copied by a colluder",
        "A colluder signs the victim's masking key as its own, to make masks that it does not know cancel or repeat.",
        lambda session: collude(session, session.masking_key(session.victim)),
        refused_by="check_keys_distinct (ProtocolError)",
        stage="ShareKeys",
        checks=(names.KEYS_DISTINCT,),
    ),
    false_keys(
        "a key copied in another encoding",
        "A colluder signs the victim's masking key with the ignored bit set, so that it looks like another key.",
        lambda session: collude(session, respelled(session.masking_key(session.victim))),
        refused_by="check_keys_well_formed (InvalidKey)",
        stage="ShareKeys",
        checks=(names.KEYS_WELL_FORMED,),
    ),
    false_keys(
        "a key of low order",
        "A colluder signs a masking key of low order, with which every shared secret is zero.",
        partial(collude, masking=LOW_ORDER),
        refused_by="check_keys_well_formed (InvalidKey)",
        stage="ShareKeys",
        checks=(names.KEYS_WELL_FORMED,),
    ),
    register_low_order,
    false_keys(
        "the client's own keys altered",
        "The victim's own token hash is replaced by one whose token the server knows.",
        lambda session: show_keys(session, {session.victim: replace(session.keys[session.victim], tokens=bytes(32))}),
        refused_by="check_own_keys (ProtocolError)",
        stage="ShareKeys",
        checks=(names.OWN_KEYS,),
        agreed={"mode": SEMI_HONEST},
    ),
    false_keys(
        "U1 with a client outside U",
        "The server adds an invented client to U1, so that the round looks larger.",
        lambda session: show_keys(session, {STRANGER: Advertisement(new_key(), new_key(), secrets.token_bytes(32))}),
        refused_by="check_subset (ProtocolError)",
        stage="ShareKeys",
        checks=(names.SUBSET,),
        agreed={"mode": SEMI_HONEST},
    ),
    Attack(
        "U with a client outside the registry",
        "The server fills U with invented clients, whose noise it knows.",
        enter,
        refused_by="check_registered (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.REGISTERED,),
        agreed={"clients": (*IDS[:-1], STRANGER)},
    ),
)
