"""Recorded rounds: the same entropy gives the same bytes, and an honest client refuses the listed messages.

Signed statements bind kind, round, client and content.  Disclosed secrets are not in the repr of a message.
"""

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dordis import errors, wire
from dordis.crypto import signature
from dordis.crypto.suite import DEFAULT
from dordis.errors import Aborted, InvalidSignature, ProtocolError
from dordis.pipeline import executor as drive
from dordis.privacy.encoding import LEVELS
from dordis.protocols.cohort import agree_on
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.noise_addition_and_removal import PrivateServer
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import SecAggServer, messages
from dordis.protocols.secagg.client_checks import verify_statement
from dordis.protocols.secagg.messages import Advertisement, EncryptedShares, MaskedInput, NoiseShares, Unmasking
from dordis.rounds.catch_up import decode_missed_sum
from dordis.rounds.invitation import SendSum
from tests.protocols.rounds import public_key, signing_key
from tests.references.encoding import Folding, Reference
from tests.vectors.make_transcripts import (
    ROUNDS,
    client,
    encoded,
    on_the_wire,
    read,
    registry,
    shown,
    summary,
    transcript,
)

VECTORS = Path(__file__).parents[2] / "vectors"
LARGEST = 300_000
RECORDED = {name: json.loads((VECTORS / f"{name}.json").read_text()) for name in ROUNDS}
REFUSED = [
    pytest.param(name, case, id=f"{name[11:]}-{case['name']}")
    for name, record in RECORDED.items()
    for case in record["refused"]
]

recorded = pytest.mark.parametrize("record", RECORDED.values(), ids=RECORDED)


def message_of(entry):
    kind = getattr(messages, entry["message"])
    return msgspec.convert(read(entry["fields"]), kind, builtin_types=(bytes,), strict=False)


def parameters_of(record):
    return message_of(record["messages"][0]).parameters


def client_of(record, u):
    vector = np.array(record["inputs"][str(u)], np.uint32)
    return client(parameters_of(record), bytes.fromhex(record["entropy"]["seed"]), u, vector)


def requests_to(record, u):
    return [
        message_of(entry)
        for entry in record["messages"]
        if entry["from"] == "server" and u in entry["to"] and u not in entry["lost"]
    ]


@recorded
def test_every_message_has_the_recorded_bytes(record):
    for entry in record["messages"]:
        data = wire.encode(message_of(entry))
        if "hex" in entry["wire"]:
            assert data.hex() == entry["wire"]["hex"]
        else:
            assert len(data) == entry["wire"]["length"]
            assert hashlib.sha256(data).hexdigest() == entry["wire"]["sha256"]
        assert on_the_wire(message_of(entry)) == entry["wire"]


@recorded
def test_the_parameters_have_the_recorded_hash(record):
    p, readable = parameters_of(record), record["parameters"]
    assert p.digest.hex() == record["parameter_hash"]
    assert list(p.clients) == readable["members"]
    assert [chunk.stop for chunk in p.chunks] == readable["ends"]
    assert p.round.hex() == readable["round"]["run"] + readable["round"]["index"].to_bytes(8, "big").hex()
    fields = shown(p)
    assert all(readable[name] == fields[name] for name in fields.keys() - {"members", "ends", "round"})


@recorded
def test_clients_with_the_same_entropy_answer_with_the_same_bytes(record):
    for u in map(int, record["inputs"]):
        machine = client_of(record, u)
        replies = [shown(machine.handle(request)) for request in requests_to(record, u)]
        assert replies == [entry["fields"] for entry in record["messages"] if entry["from"] == u]


@recorded
def test_the_server_asks_and_concludes_the_same(record):
    entries = iter(record["messages"])

    def exchange(requests):
        left = {*requests}
        while left:
            entry = next(entries)
            for u in entry["to"]:
                assert shown(requests[u]) == entry["fields"]
            left -= {*entry["to"]}
            answering.extend(u for u in entry["to"] if u not in entry["lost"])
        for u in answering:
            entry = next(entries)
            assert entry["from"] == u
            yield u, message_of(entry)
        answering.clear()

    answering = []
    p, seed = parameters_of(record), bytes.fromhex(record["entropy"]["seed"])
    outputs = drive.run(PrivateServer(SecAggServer(p, registry(p, seed)), p), exchange)
    assert next(entries, None) is None
    assert [summary(output) for output in outputs] == record["outputs"]


def test_what_is_folded_is_encoded_delivered_and_decoded_as_recorded():
    """The plain reference makes the same integers of updates that are rounded to the nearest, and the same sum."""
    record = RECORDED["transcript_folded"]
    p, seed = parameters_of(record), bytes.fromhex(record["entropy"]["seed"])
    updates = {int(u): np.array(x) for u, x in record["updates"].items()}
    inputs = {int(u): x for u, x in record["inputs"].items()}
    assert {u: x.tolist() for u, x in encoded(p, seed, updates).items()} == inputs
    written, grid = p.encoding, DistributedDP.from_parameters(p, p.encoding.projection.dim).mechanism.grid
    inner = Reference(
        grid.buckets, grid.block, grid.scale, grid.bits, written.clip, written.sensitivity, written.rotation
    )
    folding = Folding(grid.dim, grid.buckets, inner)
    small, first, second, *clipped = updates
    assert all(folding.encode(updates[u].tolist()) == inputs[u] for u in (first, second))
    assert all(np.linalg.norm(updates[u]) > written.clip for u in clipped)
    assert np.linalg.norm(updates[small]) < 0.6 * grid.buckets**0.5 / grid.scale
    values = []
    for data in map(bytes.fromhex, record["delivered"]):
        scales = np.frombuffer(data[:8], "<f4")
        cells = [nibble for octet in data[8:] for nibble in (octet & 15, octet >> 4)]
        values += [float(scales[place // 8]) * LEVELS[cell] for place, cell in enumerate(cells)]
    total = np.frombuffer(bytes.fromhex(record["total"]), "<f8")
    assert np.allclose(folding.decode(values), total, rtol=0, atol=1e-12)
    missed = msgspec.convert(read(record["missed"]["fields"]), SendSum, builtin_types=(bytes,), strict=False)
    assert wire.encode(missed).hex() == record["missed"]["wire"]
    assert missed.vector.hex() == "".join(record["delivered"])
    assert decode_missed_sum(missed, grid.dim, None).total.tobytes() == total.tobytes()
    assert decode_missed_sum(missed, grid.dim, None).survivors == (5, 4)


@pytest.mark.parametrize(("name", "case"), REFUSED)
def test_an_honest_client_refuses_what_is_listed(name, case):
    record = RECORDED[name]
    machine, requests = client_of(record, case["client"]), requests_to(record, case["client"])
    for request in requests[: case["after"]]:
        machine.handle(request)
    with pytest.raises(getattr(errors, case["error"])) as refusal:
        machine.handle(message_of(case))
    assert type(refusal.value).__name__ == case["error"]
    with pytest.raises(Aborted):
        machine.handle(requests[case["after"]])


@recorded
def test_the_files_are_small(record):
    assert len(json.dumps(record, indent=1)) < LARGEST


@pytest.mark.parametrize("name", ROUNDS)
def test_the_script_writes_the_recorded_round(name):
    assert transcript(name) == RECORDED[name]


def test_the_rounds_cover_every_stage_and_loss():
    four, ten = RECORDED["transcript_4"], RECORDED["transcript_10"]
    assert not any(entry.get("lost") for entry in four["messages"])
    lost = {entry["message"] for entry in ten["messages"] if entry.get("lost")}
    assert lost == {"CollectInput", "Agree", "Unmask", "RemoveNoise"}
    assert len(ten["outputs"]) == 2
    assert isinstance(parameters_of(ten), Parameters)


P, OTHER_ROUND = (
    agree_on(run=bytes(32), index=index, clients=range(1, 6), threshold=3, tolerance=1, bits=13, ends=[5])
    for index in (0, 1)
)
KEYS = Advertisement(b"c" * 32, b"m" * 32, b"t" * 32)
SHARES = EncryptedShares({2: b"x", 3: b"y"}, b"k" * 32, b"h" * 16)


def test_kind_round_client_and_content_are_bound():
    stated = [
        messages.keys_statement(P, 1, KEYS),
        messages.keys_statement(OTHER_ROUND, 1, KEYS),
        messages.keys_statement(P, 2, KEYS),
        messages.keys_statement(P, 1, Advertisement(b"c" * 32, b"m" * 33, b"t" * 31)),
        messages.shares_statement(P, 1, SHARES),
        messages.shares_statement(P, 1, EncryptedShares({2: b"y", 3: b"x"}, b"k" * 32, b"h" * 16)),
        messages.shares_statement(P, 1, EncryptedShares({2: b"x", 3: b"y"}, b"k" * 32, b"i" * 16)),
        messages.survivors_statement(P, 0, P.pack([1, 2, 3])),
        messages.survivors_statement(P, 1, P.pack([1, 2, 3])),
        messages.survivors_statement(P, 0, P.pack([1, 2, 4])),
    ]
    assert len({*stated}) == len(stated)


def test_a_signature_is_accepted_from_its_registered_signer_only():
    statement = messages.survivors_statement(P, 0, P.pack([1, 2, 3]))
    signed, registry = signature.sign(signing_key(1), statement), {1: public_key(1), 2: public_key(2)}
    verify_statement(DEFAULT, registry, 1, statement, signed)
    with pytest.raises(InvalidSignature):
        verify_statement(DEFAULT, registry, 2, statement, signed)
    with pytest.raises(InvalidSignature):
        verify_statement(DEFAULT, registry, 1, statement + b"x", signed)
    with pytest.raises(ProtocolError, match="not in the registry"):
        verify_statement(DEFAULT, registry, 3, statement, signed)


@pytest.mark.parametrize(
    "message",
    [
        MaskedInput(0, b"secret", b"secret"),
        Unmasking(0, b"secret", b"secret", {0: b"secret"}),
        NoiseShares(0, b"secret"),
    ],
)
def test_what_is_disclosed_is_not_in_the_representation(message):
    assert "secret" not in repr(message)
    assert repr(message) == f"<{type(message).__name__}>"
    assert "secret" not in f"{[message]}"
