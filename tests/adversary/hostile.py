"""Messages of up to a megabyte that are to cost a client time or memory before it has refused them.

Each comes first of all: an invitation, or the parameters of a round that the client was invited to and trained for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import msgspec
import numpy as np

from dordis import wire
from dordis.errors import DordisError
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import MemoryJournal, Message
from dordis.protocols.parameters import SEMI_HONEST, Encoding, Parameters
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.rounds.client import Client
from dordis.rounds.invitation import Invite, SendSum, Train
from tests.adversary.participants import (
    COMPLETE,
    IDS,
    NO_MODEL,
    Holder,
    agreed,
    careful_owner,
    honest_client,
    invitation,
    random_update,
)

MEGABYTE = 1_000_000
VICTIM = IDS[0]
LARGEST = 2**63 - 1
CHOSEN = (LARGEST, 2**31, 0, -1)
NUMBERS = (1e155, 1e308, float("inf"), float("nan"), -1.0, 5e-324)


@dataclass(frozen=True)
class HostileMessage:
    """Bytes that a client reads as a message of a kind."""

    name: str
    kind: type[Message]
    data: bytes


def parameters() -> Parameters:
    """Return the parameters that the client was invited to."""
    return agreed(COMPLETE)


def victim() -> Client:
    """Return a client that has been invited and has trained; its owner is a careful one."""
    agreed_on = parameters()
    app, journal = Holder(random_update(agreed_on)), MemoryJournal()
    client = honest_client(VICTIM, app, lambda round: journal, careful_owner(VICTIM))
    client.handle(invitation(agreed_on, NO_MODEL))
    client.handle(Train())
    return client


def refusal(client: Client, message: HostileMessage) -> DordisError | None:
    """Let a client read a message and answer it; return what it raised, or nothing if it answered."""
    try:
        client.handle(wire.decode(message.data, message.kind))
    except DordisError as error:
        return error
    return None


def messages() -> Iterator[HostileMessage]:
    """Yield all of them."""
    for name, changes in (*_clients(), *_graphs(), *_chunks(), *_variances(), *_texts(), *_numbers()):
        opening = AdvertiseKeys(msgspec.structs.replace(parameters(), **changes))
        yield HostileMessage(name, AdvertiseKeys, wire.encode(opening))
    yield from _proofs()
    yield from _bytes()
    yield from _invitations()
    yield from _missed_sums()


Changes = Iterator[tuple[str, dict[str, Any]]]


def _words(*numbers: Any) -> bytes:
    return np.array(numbers, "<u8").tobytes()


def _everyone(n: int, T: int) -> dict[str, Any]:
    return {"members": _words(*range(1, n + 1)), "n_min": n - T, "n_max": n}


def _clients() -> Changes:
    for n, scheme in product((1_000, 8_000, 16_384, 16_385, 60_000, 124_000), (Scheme.SINGLE, Scheme.EXACT)):
        q, T = 6 * n // 10, 3 * n // 10
        sizes = {**_everyone(n, T), "quorum": q, "threshold": q, "fraction": 1}
        yield f"{n} clients, {scheme.value}", sizes | {"scheme": scheme.value}
    yield "the exact noise of 1023 dropouts", {
        **_everyone(4000, 1023), "quorum": 2900, "threshold": 2900, "fraction": 1,
        "scheme": Scheme.EXACT.value, "variances": {0: "1000000"},
    }  # fmt: skip


def _graphs() -> Changes:
    for n, k, colluders in product((8_000, 16_384), (64, 1024, 1026, 7_998), (1, 2_000)):
        sizes = {**_everyone(n, n // 10), "quorum": 3 * n // 4, "colluders": colluders}
        yield f"{n} clients of degree {k}, T_C = {colluders}", sizes | {"degree": k, "threshold": k - 1, "fraction": 1}
    sparse = {**_everyone(16_384, 1_600), "quorum": 12_000, "degree": 1024}
    yield "a graph against a semi-honest server", sparse | {"threshold": 1000, "fraction": 1, "mode": SEMI_HONEST}


def _chunks() -> Changes:
    for m, scheme, different in product((500, 1024, 1025, 60_000), (Scheme.SINGLE, Scheme.EXACT), (1, 16, 60_000)):
        ends, texts = _words(*range(1, m + 1)), {k: str(64 + k % different) for k in range(m)}
        name = f"{m} chunks, {scheme.value}, {min(m, different)} variances"
        yield name, {"ends": ends, "variances": texts, "scheme": scheme.value}


def _variances() -> Changes:
    """Noise for which an owner would have to build large tables, in a mode that it refuses."""
    texts = ("1" * MEGABYTE, "9" * 64, "1/" + "3" * 60, "1e99", "nan", "10000000000", "1000000000000000", "0", "-1")
    for text in texts:
        yield f"the variance {text[:12]}", {"variances": {0: text}, "mode": SEMI_HONEST}
    large = {k: str(10**10 - k) for k in range(16)}
    yield "sixteen large tables", {"ends": _words(*range(1, 17)), "variances": large}


def _texts() -> Changes:
    for field in ("mode", "scheme"):
        yield f"a long {field}", {field: "x" * MEGABYTE}
    for field in ("round", "members", "ends", "tables", "model", "beacon"):
        yield f"long bytes: {field}", {field: bytes(MEGABYTE)}
    encoding = parameters().encoding
    for field, value in (("mechanism", "x" * MEGABYTE), ("noise", "9" * MEGABYTE), ("rotation", bytes(MEGABYTE))):
        yield f"a long {field}", {"encoding": msgspec.structs.replace(encoding, **{field: value})}


def _numbers() -> Changes:
    agreed_on = parameters()
    for field, number in product(("scale", "clip"), NUMBERS):
        yield f"{field} {number}", {"encoding": msgspec.structs.replace(agreed_on.encoding, **{field: number})}
    for field, number in product(("sensitivity", "bit", "block"), CHOSEN):
        changed: Encoding = msgspec.structs.replace(agreed_on.encoding, **{field: number})
        if changed != agreed_on.encoding:
            yield f"{field} {number}", {"encoding": changed}
    for field, number in product(("quorum", "degree", "n_min", "n_max", "colluders", "bits", "fraction"), CHOSEN):
        if getattr(agreed_on, field) != number:
            yield f"{field} {number}", {field: number}
    yield f"reserve {LARGEST}", {"reserve": LARGEST}


def _proofs() -> Iterator[HostileMessage]:
    """Lists of proofs, for parameters that the owner refuses: nobody is to verify them before."""
    refused = msgspec.structs.replace(parameters(), mode=SEMI_HONEST)
    for count, size in ((8, 80), (16_384, 48), (16_385, 40), (110_000, 2), (150_000, 0), (1, MEGABYTE)):
        opening = AdvertiseKeys(refused, dict.fromkeys(range(count), bytes(size)))
        yield HostileMessage(f"{count} proofs of {size} bytes", AdvertiseKeys, wire.encode(opening))


def _bytes() -> Iterator[HostileMessage]:
    """Bytes that are no message at all."""
    good, version = wire.encode(AdvertiseKeys(parameters())), bytes([wire.VERSION])
    made = {
        "nothing": b"",
        "zeros": bytes(MEGABYTE),
        "a deep nest": version + b"\x81\xa1a" * (MEGABYTE // 3),
        "many small maps": version + b"\x91\x80" * (MEGABYTE // 2),
        "a map of four billion entries": version + b"\xdf\xff\xff\xff\xff" + bytes(MEGABYTE),
        "a text of four gigabytes": version + b"\x81\xa4type\xdb\xff\xff\xff\xff" + bytes(MEGABYTE),
        "a good message cut": good[:-1],
        "a good message with a tail": good + bytes(MEGABYTE // 2),
    }
    for name, data in made.items():
        yield HostileMessage(name, AdvertiseKeys, data)


def _invitations() -> Iterator[HostileMessage]:
    invite = invitation(parameters())
    change = partial(msgspec.structs.replace, invite, round=bytes(40))
    changed = {
        f"an invitation with a long {field}": change(**{field: "x" * MEGABYTE}) for field in ("protocol", "dtype")
    }
    changed |= {
        f"an invitation with a long {name}": change(**{name: bytes(MEGABYTE)}) for name in ("registry", "model")
    }
    changed |= {f"an invitation to {dim} coordinates": change(dim=dim) for dim in (LARGEST, 0, -1)}
    changed |= {"an invitation to a large model": change(model_bytes=LARGEST)}
    for field in ("mode", "mechanism", "scheme"):
        terms = msgspec.structs.replace(invite.terms, **{field: "x" * MEGABYTE})
        changed[f"terms with a long {field}"] = change(terms=terms)
    for name, message in changed.items():
        yield HostileMessage(name, Invite, wire.encode(message))


def _missed_sums() -> Iterator[HostileMessage]:
    """Sums whose frames are longer than any, or that are of more chunks than there can be."""
    change = partial(msgspec.structs.replace, parameters())
    made = {
        "a missed sum with long parameters": SendSum(1, change(beacon=bytes(MEGABYTE)), {0: 1}, b""),
        "a missed sum of many chunks": SendSum(1, change(ends=b""), dict.fromkeys(range(60_000), 1), b""),
        "a missed sum of another run": SendSum(1, change(round=bytes(40)), {0: 1}, b""),
    }
    for name, message in made.items():
        yield HostileMessage(name, SendSum, wire.encode(message))
