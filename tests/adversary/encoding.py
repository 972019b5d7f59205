"""Messages are malformed, ambiguous or too long, or contain a vector of another shape."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from dordis import wire
from dordis.kernels.ring import pack
from dordis.protocol import ENCODER
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput, ShareKeys, Unmask
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.participants import COMPLETE
from tests.adversary.session import KEYS, UPLOADS, Foiled, Session

_FIXMAP = 0x80
Field = tuple[object, bytes]


def raw_map(pairs: Sequence[Field]) -> bytes:
    """Write a map of up to 15 pairs, in which a key may occur twice; values are encoded already."""
    return bytes([_FIXMAP | len(pairs)]) + b"".join(ENCODER.encode(key) + value for key, value in pairs)


def meddle(session: Session, change: Callable[[bytes], bytes] = bytes, limit: int = wire.LIMIT) -> str:
    """Let the victim read the bytes of a good request that were meddled with on their way."""
    data = change(wire.encode(session.broadcast()))
    session.trail.stage = "decode"
    return session.read(data, ShareKeys, limit)


@attack(
    "a client twice in U1",
    refused_by="check_canonical (MalformedMessage)",
    stage="ShareKeys",
    checks=(names.CANONICAL,),
    after=KEYS,
)
def list_client_twice(session: Session) -> str:
    """List a client twice in U1 with different keys, so that two readers of the same bytes disagree."""
    entries: list[Field] = [(int(u), ENCODER.encode(keys)) for u, keys in sorted(session.keys.items())]
    false = replace(session.keys[session.last], tokens=bytes(32))
    entries.insert(len(entries) - 1, (int(session.last), ENCODER.encode(false)))
    body = raw_map([("type", ENCODER.encode("ShareKeys")), ("advertisements", raw_map(entries))])
    session.trail.stage = "ShareKeys"
    return session.read(bytes([wire.VERSION]) + body, ShareKeys)


def write_unmask(session: Session, survivors: Sequence[bytes], signatures: Sequence[tuple[int, bytes]]) -> str:
    """Write a request of stage 4 by hand, with any number of U3, and let the victim read it."""
    bitmaps = [("survivors", ENCODER.encode(bitmap)) for bitmap in survivors]
    listed = raw_map([(u, ENCODER.encode(signature)) for u, signature in signatures])
    head = [("type", ENCODER.encode("Unmask")), ("chunk", ENCODER.encode(0))]
    session.trail.stage = "Unmask"
    return session.read(bytes([wire.VERSION]) + raw_map([*head, *bitmaps, ("signatures", listed)]), Unmask)


@attack(
    "both parts of a mask, in one request",
    refused_by="check_canonical (MalformedMessage)",
    stage="Unmask",
    checks=(names.CANONICAL,),
    after=UPLOADS,
)
def name_two_sets(session: Session) -> str:
    """Name U3 twice, with and without a client, so that different readers disclose different halves."""
    survivors = [session.parameters.pack(u3) for u3 in (session.u2[:-1], session.u2)]
    return write_unmask(session, survivors, list(session.agree(session.u2).items()))


@attack(
    "a signer twice",
    refused_by="check_canonical (MalformedMessage)",
    stage="Unmask",
    overlapping=(names.CANONICAL, names.ENOUGH),
    after=UPLOADS,
)
def list_signer_twice(session: Session) -> str:
    """Complete a quorum by a repeated signature: the victim would unmask without a quorum."""
    few = list(session.agree(session.u2).items())[: session.parameters.quorum - 1]
    return write_unmask(session, [session.parameters.pack(session.u2)], [*few, few[-1]])


def misshape(session: Session, change: Callable[[bytes], bytes]) -> str:
    """Let a dishonest client upload a vector that is not one of this round."""
    liar = session.victim
    session.corrupt(liar, CollectInput, lambda reply: replace(reply, vector=change(reply.vector)))
    if liar not in session.play().survivors:
        session.trail.stage = "CollectInput"
        raise Foiled("add_packed", "the upload counts as none")
    return "the server added what is no vector of this round"


@attack(
    "a signature of a megabyte",
    refused_by="decode",
    stage="AdvertiseKeys",
    graphs=(COMPLETE,),
    agreed={"mode": SEMI_HONEST},
)
def sign_at_length(session: Session) -> str:
    """In the mode without signatures a client sends one of a megabyte, which the server forwards to all clients."""
    liar = session.victim
    session.corrupt(liar, AdvertiseKeys, lambda reply: replace(reply, signature=bytes(1 << 20)))
    if liar not in session.play().survivors:
        session.trail.stage = "AdvertiseKeys"
        raise Foiled("decode", "the reply counts as none")
    return "everybody was sent a signature of a megabyte"


meddled = partial(Attack, graphs=(COMPLETE,), after=KEYS)
# Five coordinates of 13 bits: 65 bits in nine bytes.
misshapen = partial(Attack, checks=(names.UPLOAD_FORMAT,), graphs=(COMPLETE,), agreed={"bits": 13, "ends": [5]})

ATTACKS = (
    meddled(
        "an oversized message",
        "A message beyond the receiver's limit would fill its memory.",
        partial(meddle, limit=64),
        refused_by="check_size (MalformedMessage)",
        stage="decode",
        checks=(names.SIZE,),
    ),
    meddled(
        "truncated bytes",
        "A truncated message would be read as another, shorter one.",
        partial(meddle, change=lambda data: data[:-1]),
        refused_by="decode (MalformedMessage)",
        stage="decode",
    ),
    meddled(
        "trailing bytes",
        "Bytes after the message would make one message two, or carry hidden data.",
        partial(meddle, change=lambda data: data + b"\0"),
        refused_by="decode (MalformedMessage)",
        stage="decode",
    ),
    meddled(
        "another protocol version",
        "A message of another version would be read by the rules of this one.",
        partial(meddle, change=lambda data: bytes([wire.VERSION + 1]) + data[1:]),
        refused_by="check_version (MalformedMessage)",
        stage="decode",
        overlapping=(names.VERSION, names.CANONICAL),
    ),
    list_client_twice,
    name_two_sets,
    list_signer_twice,
    sign_at_length,
    misshapen(
        "a masked vector of the wrong length",
        "An upload with more coordinates than agreed would be added to the sum.",
        partial(misshape, change=lambda vector: vector + bytes(2)),
        refused_by="add_packed",
        stage="CollectInput",
    ),
    misshapen(
        "a masked vector of the wrong width",
        "An upload of 16 bits a coordinate would be read as one of 13 bits and spoil the sum.",
        partial(misshape, change=lambda _: pack(np.arange(5, dtype=np.uint32), 16).tobytes()),
        refused_by="add_packed",
        stage="CollectInput",
    ),
    misshapen(
        "a masked vector out of range",
        "An upload has bits set beyond its last coordinate: two encodings of one vector.",
        partial(misshape, change=lambda vector: vector[:-1] + bytes([vector[-1] | 0x80])),
        refused_by="add_packed",
        stage="CollectInput",
    ),
)
