"""Write transcript_4, transcript_10 and transcript_folded.json, whole rounds: python -m tests.vectors.make_transcripts.

The secrets come from a stream that anyone can compute: never use it outside tests.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dordis import wire
from dordis.crypto import signature
from dordis.pipeline import executor as drive
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.scaling import sensitivity
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import Message, Requests
from dordis.protocols.cohort import agree_on
from dordis.protocols.delivery import Dispatch
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput, NoisyInput, PrivateServer
from dordis.protocols.parameters import MALICIOUS, Parameters
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    Agree,
    CollectInput,
    DeliverShares,
    PrepareInput,
    RemoveNoise,
    ShareKeys,
    Unmask,
)
from dordis.rounds.catch_up import missed_sum

NOTE = f"Answers of protocol version {wire.VERSION}: they do not change within it."
ENCODING = (
    "Bytes are hexadecimal after 0x. A message on the wire is the version byte and MessagePack of its fields in"
    " order, the tag 'type' first, maps in the order of their keys; messages of more than 600 bytes are given by"
    " their length and SHA-256. The vector of a MaskedInput travels beside these bytes, as it is: there it is empty."
)
ENTROPY = (
    "Client u draws from SHA-256(seed || u || 0) || SHA-256(seed || u || 1) || .., u and the counter in eight bytes,"
    " big-endian; every draw takes the next bytes. In the malicious mode its private signing key is SHA-256(seed ||"
    " 'signing' || u)."
)
FOLDED = (
    "An input is what encoding makes of an update: clipped, folded into k buckets by signs that follow from the"
    " rotation's seed, clipped again, rotated, scaled and rounded; what is rounded at random draws from a stream"
    " like the clients', of the seed SHA-256('rounding' || seed). 'delivered' is the sum of each chunk in four bits"
    " a coordinate and one scale a block; 'total' is what server and clients decode from it, as 64-bit numbers,"
    " little-endian; 'missed' is the message, with the same bytes beside it, for a client that was not there."
)
LONGEST_IN_FULL = 600
Lost = frozenset[tuple[int, str, int]]
"""Clients, names of requests, and chunks (-1 in the set-up) of which the request never arrives."""


class Stream:
    """Deterministic bytes for one client, in counter mode."""

    def __init__(self, seed: bytes, client: int) -> None:
        self._start = seed + client.to_bytes(8, "big")
        self._counter, self._rest = 0, b""

    def __call__(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._rest += hashlib.sha256(self._start + self._counter.to_bytes(8, "big")).digest()
            self._counter += 1
        drawn, self._rest = self._rest[:size], self._rest[size:]
        return drawn


def shown(message: Any) -> Any:
    """Write a message, or a part of one, as JSON."""
    match msgspec.to_builtins(message, builtin_types=(bytes,)):
        case bytes(data):
            return "0x" + data.hex()
        case dict(fields):
            return {str(name): shown(value) for name, value in fields.items()}
        case other:
            return other


def read(fields: Any) -> Any:
    """Undo `shown`, down to numbers, strings, bytes and maps."""
    if isinstance(fields, dict):
        return {name: read(value) for name, value in fields.items()}
    if isinstance(fields, str) and fields.startswith("0x"):
        return bytes.fromhex(fields[2:])
    return fields


def on_the_wire(message: Message) -> dict[str, Any]:
    """Return the wire bytes, or their length and hash if they are many."""
    data = wire.encode(message)
    if len(data) <= LONGEST_IN_FULL:
        return {"hex": data.hex()}
    return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}


class Recording:
    """Deliver requests and write everything down: the requests of a stage, equal ones together, then the replies."""

    def __init__(self, clients: Mapping[int, SecAggClient], lost: Lost) -> None:
        self._clients, self._lost = clients, lost
        self.messages: list[dict[str, Any]] = []
        self.requests: dict[int, list[Message]] = {u: [] for u in clients}

    def __call__(self, requests: Requests) -> Iterator[tuple[int, Message]]:
        receivers: dict[int, list[int]] = {}
        for u, request in requests.items():
            receivers.setdefault(id(request), []).append(u)
        replies = {}
        for together in receivers.values():
            request = requests[together[0]]
            lost = [u for u in together if (u, type(request).__name__, getattr(request, "chunk", -1)) in self._lost]
            self._write(request, {"from": "server", "to": together, "lost": lost})
            for u in together:
                if u not in lost:
                    self.requests[u].append(request)
                    replies[u] = self._clients[u].handle(request)
        for u, reply in replies.items():
            self._write(reply, {"from": u, "to": "server"})
        yield from replies.items()

    def _write(self, message: Message, way: dict[str, Any]) -> None:
        stage = {"message": type(message).__name__, "chunk": getattr(message, "chunk", None)}
        self.messages.append(stage | way | {"fields": shown(message), "wire": on_the_wire(message)})


def four() -> tuple[Parameters, Lost]:
    """Return a round of four clients, one chunk, nothing lost."""
    p = agree_on(
        run=bytes(range(32)), index=1, clients=(2, 3, 5, 7), threshold=2, tolerance=1, colluders=1, bits=16,
        ends=[6], scheme=Scheme.SINGLE, variances=[30],
    )  # fmt: skip
    return p, frozenset()


def ten() -> tuple[Parameters, Lost]:
    """Return a round of ten clients against a malicious server, two chunks, with losses at every stage of a chunk."""
    p = agree_on(
        mode=MALICIOUS, run=bytes(range(32, 64)), index=2**40, clients=(1, 4, 9, 16, 25, 36, 49, 64, 81, 2**63 - 1),
        threshold=7, tolerance=2, colluders=2, bits=20, ends=[7, 12], scheme=Scheme.SINGLE, variances=[1000, 2000],
    )  # fmt: skip
    first, *_ = p.clients
    owing = [u for u, due in p.due(0, [u for u in p.clients if u != first]).items() if due]
    silent = owing[-1]  # its seed must be fetched in stage 5, where another one is lost
    deaf = next(u for u in reversed(p.clients) if u != silent)
    lost = {(first, "CollectInput", 0), (silent, "Unmask", 0), (deaf, "RemoveNoise", 0)}
    return p, frozenset(lost | {(silent, "CollectInput", 1), (deaf, "Agree", 1)})


def folded() -> tuple[Parameters, Lost]:
    """Return a round of five clients whose updates of 70 coordinates are folded into 32, of which one loses a chunk."""
    grid = Grid(70, 8, 64.0, 16, 32)
    mechanism = DSkellam(grid, 1.0, sensitivity(grid.scale, 1.0, grid.padded, folded=True).squared)
    p = agree_on(
        run=bytes(range(64, 96)), index=3, clients=(2, 3, 5, 7, 11), threshold=3, tolerance=1, colluders=1, bits=16,
        ends=[16, 32], scheme=Scheme.SINGLE, variances=[30, 30], encoding=encoding_of(mechanism, bytes(range(32))),
        model=bytes(32),
    )  # fmt: skip
    return p, frozenset({(3, "CollectInput", 1)})


def client(p: Parameters, seed: bytes, u: int, vector: np.ndarray) -> SecAggClient:
    """Return a client whose secrets are those of the transcript."""
    if not p.is_malicious:
        return SecAggClient(u, NoisyInput(vector), entropy=Stream(seed, u))
    keys = {"signing": signing_key(seed, u), "registry": registry(p, seed)}
    return SecAggClient(u, NoisyInput(vector), entropy=Stream(seed, u), **keys)


def signing_key(seed: bytes, u: int) -> bytes:
    return hashlib.sha256(seed + b"signing" + u.to_bytes(8, "big")).digest()


def registry(p: Parameters, seed: bytes) -> dict[int, bytes]:
    """Return everyone's public signing key."""
    return {u: signature.public_key(signing_key(seed, u)) for u in p.clients}


ROUNDS: dict[str, Callable[[], tuple[Parameters, Lost]]] = {
    "transcript_4": four,
    "transcript_10": ten,
    "transcript_folded": folded,
}


def updates_of(p: Parameters, seed: bytes) -> dict[int, np.ndarray]:
    """Return a small update, which is rounded at random, two that are not, and two that are clipped."""
    draw, dim = Stream(hashlib.sha256(b"updates" + seed).digest(), 0), p.encoding.projection.dim
    drawn = [np.frombuffer(draw(dim), np.int8) for _ in p.clients]
    updates = [drawn[0] % 3 / 256, *(x % 3 / 16 - 1 / 16 for x in drawn[1:3]), *(x / 128 for x in drawn[3:])]
    return dict(zip(p.clients, updates, strict=True))


def encoded(p: Parameters, seed: bytes, updates: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Return what clients put into the sum."""
    private = DistributedDP.from_parameters(p, p.encoding.projection.dim)
    return {u: private.encode(x, Stream(hashlib.sha256(b"rounding" + seed).digest(), u)) for u, x in updates.items()}


def used(p: Parameters, outputs: Sequence[ChunkOutput]) -> dict[str, Any]:
    """Return what is delivered of a folded sum, and what it decodes to."""
    private = DistributedDP.from_parameters(p, p.encoding.projection.dim)
    sums = [Dispatch(k, len(each.survivors), private.encode_delivered(k, each.total)) for k, each in enumerate(outputs)]
    return {
        "delivered": [message.vector.hex() for message in sums],
        "total": private.decode(outputs).total.astype("<f8").tobytes().hex(),
        "missed": {"fields": shown(missed := missed_sum(1, p, sums)), "wire": wire.encode(missed).hex()},
    }


def transcript(name: str) -> dict[str, Any]:
    """Run a round and return everything about it."""
    p, lost = ROUNDS[name]()
    seed = hashlib.sha256(name.encode()).digest()
    draw = Stream(hashlib.sha256(b"inputs" + seed).digest(), 0)
    updates = updates_of(p, seed) if p.encoding.projection else {}
    vectors = {u: np.frombuffer(draw(4 * p.dim), "<u4") >> np.uint32(32 - p.bits) for u in p.clients}
    vectors = encoded(p, seed, updates) if updates else vectors
    clients = {u: client(p, seed, u, np.array(x, np.uint32)) for u, x in vectors.items()}
    recording = Recording(clients, lost)
    outputs = drive.run(PrivateServer(SecAggServer(p, registry(p, seed)), p), recording)
    me = max(recording.requests, key=lambda u: (len(recording.requests[u]), -u))
    return {
        "note": NOTE,
        "encoding": ENCODING,
        "entropy": {"rule": ENTROPY, "seed": seed.hex()},
        "parameters": readable(p),
        "parameter_hash": p.digest.hex(),
        **({"folding": FOLDED, "updates": {str(u): x.tolist() for u, x in updates.items()}} if updates else {}),
        "inputs": {str(u): x.tolist() for u, x in vectors.items()},
        "messages": recording.messages,
        "outputs": [summary(output) for output in outputs],
        **(used(p, outputs) if updates else {}),
        "refused": [refused(each, p, me, recording.requests[me]) for each in REFUSALS if applies(each, recording, me)],
    }


def readable(p: Parameters) -> dict[str, Any]:
    """Return the parameters with their packed fields taken apart."""
    packed = {"round": {"run": p.round[:32].hex(), "index": int.from_bytes(p.round[32:], "big")}}
    return shown(p) | packed | {"members": list(p.clients), "ends": [chunk.stop for chunk in p.chunks]}


def summary(output: Any) -> dict[str, Any]:
    """Return the output of a chunk."""
    return {
        "total": output.total.tolist(),
        "survivors": list(output.survivors),
        "left": str(output.left),
        "charged": str(output.charged),
        "stayed": {str(u): list(ks) for u, ks in output.stayed.items()},
        "named": sorted(output.named),
    }


Alter = Callable[[Any, Parameters, int], Message]
Refusal = tuple[str, type[Message], Alter, str]


def changed(message: Any, **fields: Any) -> Message:
    """Replace fields; maps stay in the order of their keys."""
    ordered = {name: dict(sorted(f.items())) if isinstance(f, dict) else f for name, f in fields.items()}
    return msgspec.structs.replace(message, **ordered)


def with_parameters(**fields: Any) -> Alter:
    return lambda request, p, me: changed(request, parameters=changed(p, **fields))


def with_projection(**fields: Any) -> Alter:
    def alter(request: AdvertiseKeys, p: Parameters, me: int) -> Message:
        encoding = changed(p.encoding, projection=changed(p.encoding.projection, **fields))
        return with_parameters(encoding=encoding)(request, p, me)

    return alter


def with_keys(of: Callable[[list[int], int], int], **fields: Callable[[Any], bytes]) -> Alter:
    """Alter the keys of one member of U1."""

    def alter(request: ShareKeys, p: Parameters, me: int) -> Message:
        u = of(list(request.advertisements), me)
        keys = request.advertisements[u]
        altered = changed(keys, **{name: f(getattr(keys, name)) for name, f in fields.items()})
        return changed(request, advertisements={**request.advertisements, u: altered})

    return alter


def without_keys(gone: Callable[[list[int], int], list[int]]) -> Alter:
    def alter(request: ShareKeys, p: Parameters, me: int) -> Message:
        out = gone(list(request.advertisements), me)
        return changed(request, advertisements={u: a for u, a in request.advertisements.items() if u not in out})

    return alter


def peer(members: list[int], me: int) -> int:
    return next(u for u in members if u != me)


def myself(members: list[int], me: int) -> int:
    return me


def copied_key(request: ShareKeys, p: Parameters, me: int) -> Message:
    members = [u for u in request.advertisements if u != me]
    channel = request.advertisements[members[0]].channel
    return with_keys(lambda *_: members[1], channel=lambda _: channel)(request, p, me)


def small_u2(request: DeliverShares, p: Parameters, me: int) -> Message:
    """Show one member fewer than the noise tolerates."""
    kept = [me, *request.ciphertexts][: len(p.clients) - p.tolerance - 1]
    ciphertexts = {u: c for u, c in request.ciphertexts.items() if u in kept}
    return changed(request, members=p.pack(kept), ciphertexts=ciphertexts)


def survivors(choose: Callable[[list[int], int, Parameters], list[int]]) -> Alter:
    def alter(request: Unmask, p: Parameters, me: int) -> Message:
        return changed(request, survivors=p.pack(choose(list(p.unpack(request.survivors)), me, p)))

    return alter


def fewest(members: list[int], me: int, p: Parameters) -> list[int]:
    return sorted([me, *(u for u in members if u != me)][: p.threshold - 1])


def owing(choose: Callable[[Parameters, list[int]], list[int]]) -> Alter:
    def alter(request: RemoveNoise, p: Parameters, me: int) -> Message:
        return changed(request, owing=p.pack(choose(p, list(p.clients))))

    return alter


def everyone_survived(request: Agree, p: Parameters, me: int) -> Message:
    """Name everybody a survivor, with a token that nobody showed for the one who is missing."""
    missing = len(p.clients) - len(p.unpack(request.survivors))
    return changed(request, survivors=p.pack(p.clients), tokens=bytes(32 * missing) + request.tokens)


def signatures(alter: Callable[[dict[int, bytes]], dict[int, bytes]]) -> Alter:
    return lambda request, p, me: changed(request, signatures=alter(request.signatures))


def exchanged(signed: dict[int, bytes]) -> dict[int, bytes]:
    return dict(zip(signed, reversed(signed.values()), strict=True))


REFUSALS: list[Refusal] = [
    ("no such mode", AdvertiseKeys, with_parameters(mode="friendly"), "ParametersRefused"),
    ("a tolerance beyond n - t", AdvertiseKeys, with_parameters(n_min=1), "ParametersRefused"),
    ("as many colluders as the threshold", AdvertiseKeys, with_parameters(colluders=5), "ParametersRefused"),
    ("33 bits", AdvertiseKeys, with_parameters(bits=33), "ParametersRefused"),
    ("other noise tables", AdvertiseKeys, with_parameters(tables=bytes(32)), "ParametersRefused"),
    ("folded by another rule", AdvertiseKeys, with_projection(rule="the server's own"), "ParametersRefused"),
    ("more buckets than are summed", AdvertiseKeys, with_projection(buckets=64), "ParametersRefused"),
    ("delivered in one bit", AdvertiseKeys, with_projection(delivered=1), "ParametersRefused"),
    ("U1 without me", ShareKeys, without_keys(lambda members, me: [me]), "ProtocolError"),
    (
        "too few in U1",
        ShareKeys,
        without_keys(lambda members, me: [u for u in members if u != me]),
        "ProtocolError",
    ),
    ("my channel key altered", ShareKeys, with_keys(myself, channel=lambda key: bytes(31) + b"\1"), "ProtocolError"),
    ("my tokens altered", ShareKeys, with_keys(myself, tokens=lambda tokens: bytes(len(tokens))), "ProtocolError"),
    ("a key twice", ShareKeys, copied_key, "ProtocolError"),
    ("a key cut", ShareKeys, with_keys(peer, masking=lambda keys: keys[:-1]), "MalformedMessage"),
    ("a key of low order", ShareKeys, with_keys(peer, channel=lambda _: bytes(32)), "InvalidKey"),
    ("shares before keys", ShareKeys, lambda r, p, me: CollectInput(0), "UnexpectedRequest"),
    ("masking before the set-up is complete", ShareKeys, lambda r, p, me: PrepareInput(0), "UnexpectedRequest"),
    (
        "masking a chunk that does not exist",
        CollectInput,
        lambda r, p, me: PrepareInput(len(p.chunks)),
        "UnexpectedRequest",
    ),
    ("more than T missing in U2", DeliverShares, small_u2, "TooManyDropouts"),
    ("no such chunk", CollectInput, lambda r, p, me: CollectInput(len(p.chunks)), "UnexpectedRequest"),
    ("unmasking first", CollectInput, lambda r, p, me: Unmask(0, p.pack(p.clients)), "UnexpectedRequest"),
    ("U3 without me", Unmask, survivors(lambda u3, me, p: [u for u in u3 if u != me]), "ProtocolError"),
    ("too few in U3", Unmask, survivors(fewest), "ProtocolError"),
    (
        "more than T dropped",
        Unmask,
        survivors(lambda u3, me, p: sorted([me, *(u for u in u3 if u != me)][: len(p.clients) - p.tolerance - 1])),
        "TooManyDropouts",
    ),
    ("U3 too long", Unmask, lambda r, p, me: changed(r, survivors=r.survivors + b"\0"), "MalformedMessage"),
    ("seeds before unmasking", Unmask, lambda r, p, me: RemoveNoise(0, r.survivors), "UnexpectedRequest"),
    ("a key signed by nobody", ShareKeys, with_keys(peer, signature=lambda _: bytes(64)), "InvalidSignature"),
    ("unmasking without agreement", Agree, lambda r, p, me: Unmask(0, r.survivors), "UnexpectedRequest"),
    ("an upload that is not proved", Agree, lambda r, p, me: changed(r, tokens=bytes(len(r.tokens))), "ProtocolError"),
    ("U3 with one who did not upload", Agree, everyone_survived, "ProtocolError"),
    ("too few signatures", Unmask, signatures(lambda s: dict(list(s.items())[1:])), "ProtocolError"),
    ("signatures exchanged", Unmask, signatures(exchanged), "InvalidSignature"),
    ("seeds of nobody", RemoveNoise, owing(lambda p, everyone: []), "ProtocolError"),
    ("seeds not due", RemoveNoise, owing(lambda p, everyone: everyone), "ProtocolError"),
    ("another U3", RemoveNoise, lambda r, p, me: Unmask(0, p.pack(p.clients)), "UnexpectedRequest"),
]
"""What is wrong, the request that is replaced, by what, and the error that an honest client raises."""


SIGNED = {"a key signed by nobody", "too few signatures", "signatures exchanged"}
"""Refusals of the malicious mode that replace a request of both modes."""
OF_FOLDING = {"folded by another rule", "more buckets than are summed", "delivered in one bit"}


def applies(refusal: Refusal, recording: Recording, me: int) -> bool:
    """Tell whether the round has such a request to replace."""
    kinds = {type(request) for request in recording.requests[me]}
    projection = recording.requests[me][0].parameters.encoding.projection
    fits = (Agree in kinds or refusal[0] not in SIGNED) and (projection or refusal[0] not in OF_FOLDING)
    return refusal[1] in kinds and bool(fits)


def refused(refusal: Refusal, p: Parameters, me: int, requests: list[Message]) -> dict[str, Any]:
    """Write down a request that client `me` must refuse after it has answered so many of its own."""
    name, kind, alter, error = refusal
    after = next(i for i, request in enumerate(requests) if isinstance(request, kind))
    altered = alter(requests[after], p, me)
    message = {"message": type(altered).__name__, "fields": shown(altered)}
    return {"name": name, "client": me, "after": after, "error": error} | message


if __name__ == "__main__":
    for name in ROUNDS:
        Path(__file__).with_name(f"{name}.json").write_text(json.dumps(transcript(name), indent=1) + "\n")
