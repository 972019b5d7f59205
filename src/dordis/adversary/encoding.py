"""Bytes that are no message, two messages at once, or a vector of another shape."""

from abc import abstractmethod
from collections.abc import Sequence

import msgspec
import numpy as np

from dordis import wire
from dordis.adversary import names
from dordis.adversary.attack import Attack, Foiled
from dordis.adversary.cast import BOTH, agreed
from dordis.adversary.play import Deviant, play
from dordis.adversary.session import Session, Trail
from dordis.kernels.packing import pack
from dordis.protocol import ENCODER
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput, MaskedInput, ShareKeys, Unmask

_FIXMAP = 0x80


def raw_map(pairs: Sequence[tuple[object, bytes]]) -> bytes:
    """Write a map of up to 15 pairs, in which a key may occur twice; values are encoded already."""
    return bytes([_FIXMAP | len(pairs)]) + b"".join(ENCODER.encode(key) + value for key, value in pairs)


class MeddledBytes(Attack):
    """The bytes of a good request are meddled with on their way."""

    limit = wire.LIMIT

    def meddle(self, data: bytes) -> bytes:
        """Return other bytes."""
        return data

    def attempt(self, graph: str, trail: Trail) -> str:
        """Let the victim read them."""
        session = Session(agreed(graph), trail)
        data = self.meddle(wire.encode(AdvertiseKeys(session.parameters)))
        trail.stage = "decode"
        session.parties[session.parameters.clients[0]].handle(wire.decode(data, AdvertiseKeys, self.limit))
        return "the victim read the bytes and answered"


class Oversized(MeddledBytes):
    """More bytes than the receiver takes."""

    name = "an oversized message"
    text = "A message beyond the receiver's limit is to fill its memory."
    limit = 64
    checks = (names.SIZE,)


class Truncated(MeddledBytes):
    """The last byte is missing."""

    name = "truncated bytes"
    text = "A message that breaks off is to be read as another, shorter one."

    def meddle(self, data: bytes) -> bytes:
        """Cut the last byte off."""
        return data[:-1]


class Trailing(MeddledBytes):
    """There is a byte too many."""

    name = "trailing bytes"
    text = "Bytes after the message are to make two messages of one, or carry something unnoticed."

    def meddle(self, data: bytes) -> bytes:
        """Add a byte."""
        return data + b"\0"


class AnotherVersion(MeddledBytes):
    """The same bytes under another version."""

    name = "another protocol version"
    text = "A message of another version is to be read by the rules of this one."
    overlapping = (names.VERSION, names.CANONICAL)

    def meddle(self, data: bytes) -> bytes:
        """Change the first byte."""
        return bytes([wire.VERSION + 1]) + data[1:]


class ClientTwice(Attack):
    """U1 has one client twice, with different keys: readers may take one or the other."""

    name = "a client twice in U1"
    text = "The broadcast lists a client twice with different keys, so that two readers of the same bytes disagree."
    graphs = BOTH
    checks = (names.CANONICAL,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Put a false entry before the true one."""
        session = Session(agreed(graph), trail)
        session.advertise()
        victim, *_, peer = session.parameters.clients
        entries = [(int(u), ENCODER.encode(keys)) for u, keys in sorted(session.keys.items())]
        false = msgspec.structs.replace(session.keys[peer], tokens=bytes(32))
        entries.insert(len(entries) - 1, (int(peer), ENCODER.encode(false)))
        body = raw_map([("type", ENCODER.encode("ShareKeys")), ("advertisements", raw_map(entries))])
        trail.stage = "ShareKeys"
        session.parties[victim].handle(wire.decode(wire.encode(session.broadcast())[:1] + body, ShareKeys))
        return "the victim shared its secrets on the strength of an ambiguous broadcast"


class UnmaskInTwoWays(Attack):
    """A request of stage 4 that is written by hand."""

    graphs = BOTH

    @abstractmethod
    def written(self, parameters: Parameters, bitmaps: tuple[bytes, bytes], signatures: dict[int, bytes]) -> bytes:
        """Return the bytes."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Send them to the first client."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.upload()
        victim, *others = session.u2
        signatures = session.agree(session.u2)
        bitmaps = session.parameters.pack([victim, *others[1:]]), session.parameters.pack(session.u2)
        trail.stage = "Unmask"
        body = self.written(session.parameters, bitmaps, signatures)
        session.parties[victim].handle(wire.decode(bytes([wire.VERSION]) + body, Unmask))
        return "the victim disclosed on the strength of an ambiguous request"


class BothHalvesInOneRequest(UnmaskInTwoWays):
    """The request names two U3, one with a client and one without."""

    name = "both halves of a mask, in one request"
    text = "One request names U3 twice, with and without a client, so that different readers disclose different halves."
    checks = (names.CANONICAL,)

    def written(self, parameters: Parameters, bitmaps: tuple[bytes, bytes], signatures: dict[int, bytes]) -> bytes:
        """Write the field twice."""
        twice = [("survivors", ENCODER.encode(bitmap)) for bitmap in bitmaps]
        head = [("type", ENCODER.encode("Unmask")), ("chunk", ENCODER.encode(0))]
        return raw_map([*head, *twice, ("signatures", ENCODER.encode(signatures))])


class SignerTwice(UnmaskInTwoWays):
    """The quorum is made up by one signer that is listed twice."""

    name = "a signer twice"
    text = "One signature fewer than the quorum, and one of them twice: the victim would disclose without a quorum."
    overlapping = (names.CANONICAL, names.ENOUGH)

    def written(self, parameters: Parameters, bitmaps: tuple[bytes, bytes], signatures: dict[int, bytes]) -> bytes:
        """Write the last signer twice."""
        few = list(signatures.items())[: parameters.quorum - 1]
        listed = raw_map([(u, ENCODER.encode(signed)) for u, signed in (*few, few[-1])])
        head = [("type", ENCODER.encode("Unmask")), ("chunk", ENCODER.encode(0))]
        return raw_map([*head, ("survivors", ENCODER.encode(bitmaps[1])), ("signatures", listed)])


class MisshapenUpload(Attack):
    """A dishonest client uploads a vector that is not one."""

    checks = (names.UPLOAD_FORMAT,)

    @abstractmethod
    def alter(self, reply: MaskedInput) -> MaskedInput:
        """Return another upload."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Five coordinates of 13 bits: 65 bits in nine bytes."""
        session = Session(agreed(graph, bits=13, ends=[5]), trail)
        liar = session.parameters.clients[0]
        session.parties[liar] = Deviant(session.honest[liar], CollectInput, self.alter)
        if liar not in play(session).survivors:
            trail.stage = "CollectInput"
            raise Foiled("unpack", "the upload counts as none")
        return "the server added what is no vector of this round"


class WrongLength(MisshapenUpload):
    """One coordinate too many."""

    name = "a masked vector of the wrong length"
    text = "An upload with more coordinates than agreed is to be added where it does not belong."

    def alter(self, reply: MaskedInput) -> MaskedInput:
        """Add two bytes."""
        return msgspec.structs.replace(reply, vector=reply.vector + bytes(2))


class WrongWidth(MisshapenUpload):
    """More bits a coordinate."""

    name = "a masked vector of the wrong width"
    text = "An upload of 16 bits a coordinate is to be read as one of 13, and to spoil the sum."

    def alter(self, reply: MaskedInput) -> MaskedInput:
        """Pack anew."""
        return msgspec.structs.replace(reply, vector=pack(np.arange(5, dtype=np.uint32), 16).tobytes())


class WrongRange(MisshapenUpload):
    """Bits are set beyond the last coordinate."""

    name = "a masked vector out of range"
    text = "An upload has bits set where no coordinate is: two encodings of one vector, or a value beyond 2^b."

    def alter(self, reply: MaskedInput) -> MaskedInput:
        """Set the top bit."""
        return msgspec.structs.replace(reply, vector=reply.vector[:-1] + bytes([reply.vector[-1] | 0x80]))


ATTACKS: tuple[Attack, ...] = (
    Oversized(),
    Truncated(),
    Trailing(),
    AnotherVersion(),
    ClientTwice(),
    BothHalvesInOneRequest(),
    SignerTwice(),
    WrongLength(),
    WrongWidth(),
    WrongRange(),
)
