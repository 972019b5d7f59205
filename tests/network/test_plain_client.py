"""docs/wire.md suffices to write a client: one that was written from it takes part in runs with ordinary clients."""

import ast
import asyncio
import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
import numpy as np
import pytest

from dordis import wire
from dordis.network import messages as network
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId
from dordis.protocols import cohort, delivery, parameters
from dordis.protocols.assisted import messages as assisted
from dordis.protocols.assisted import parameters as helpers
from dordis.protocols.escrow import IssuedSecrets
from dordis.protocols.secagg import messages as secagg
from dordis.rounds import invitation
from tests.network import plain_encoding
from tests.network.assisted_run import AssistedRun, assisted_keys
from tests.network.deployed_commands import DeployedCommands
from tests.network.deployed_run import DeployedRun
from tests.network.forked_processes import HANG
from tests.network.plain_assisted import Contribution
from tests.network.plain_client import SUBPROTOCOL, PlainClient
from tests.network.plain_visitor import PlainVisitor
from tests.network.process_roles import OUTPUT, value
from tests.protocols.assisted.parties import Round as AssistedRound
from tests.protocols.assisted.parties import secret

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"
PLAIN = 3
"""The client that is not one of dordis."""
DIM = 20_000
UPDATE = np.where(np.arange(DIM) % 2, 1.0, -1.0) / DIM**0.5
"""Orthogonal to the updates of all others, and as long as the clip bound allows."""


def joined(fleet, login):
    """Start the plain client in a thread; return it and the future of its end."""
    members = json.loads((fleet.folder / "registry.json").read_text())["membership"]["members"]
    keys = {int(u): bytes.fromhex(member["signing"]) for u, member in members.items()}
    base = f"https://localhost:{fleet.port}"
    client = PlainClient(base, fleet.folder / f"c{PLAIN}.key", keys, UPDATE, login)
    return client, ThreadPoolExecutor(1).submit(asyncio.run, client.stay())


def check_sums(fleet, kind=cohort.CohortParameters):
    """Check that each sum is that of its survivors, up to rounding and the noise that its receipt says.

    Return the standard deviation of one coordinate.
    """
    with np.load(fleet.run / OUTPUT) as stored:
        sums = dict(stored)
    (record,) = fleet.stored().rounds
    receipt = fleet.receipt(record.index)
    agreed = wire.decode(base64.b64decode(receipt["agreed"]), kind)
    block, ends = agreed.encoding.block, [span.stop for span in agreed.chunks]
    chunk_of = np.searchsorted(ends, np.arange(DIM) % (agreed.dim // block) * block, side="right")
    deviation = 0.0
    for chunk, survivors in enumerate(receipt["survivors"]):
        assert PLAIN in survivors
        others, part = sum(value(u, DIM) for u in survivors if u != PLAIN), chunk_of == chunk
        error = (sums[f"total{record.index}"] - others - UPDATE)[part]
        left = Fraction(receipt["left"][chunk])
        noise, rounding = (float(v) / agreed.encoding.scale**2 for v in (left, len(survivors) / 4))
        # The mean square of so many samples is within 8 standard deviations but for a chance below 1e-9.
        spread = 8 * (2 / len(error)) ** 0.5
        assert (1 - spread) * noise < float(np.mean(error**2)) < (1 + spread) * (noise + rounding)
        deviation = max(deviation, (noise + rounding) ** 0.5)
        assert abs(float(error @ UPDATE[part])) < 8 * deviation
    return deviation


@pytest.mark.network
@pytest.mark.slow
def test_a_client_written_from_the_page_takes_part_in_a_run_of_dordis_serve(processes, tmp_path):
    """There is no noise, in which an update could be missing; the next test has some."""
    keys = ["federation.rounds=1", f"app.options.dim={DIM}", "privacy.noise.kind=none", "protocol.mode=semi-honest"]
    fleet = DeployedCommands(processes, tmp_path, 4, [*keys, "deployment.login=challenge", "deployment.wait=600"])
    fleet.serve()
    client, end = joined(fleet, "challenge")
    for u in {1, 2, 3, 4} - {PLAIN}:
        fleet.join(u)
    assert fleet.end() == 0
    assert end.result(HANG) == {"type": "Shutdown", "run_over": True, "reason": ""}
    assert client.asked[-2:] == ["Dispatch", "Store"]
    assert 8 * check_sums(fleet) < 1  # its update, of norm 1, is not missing


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["single", "exact"])
def test_it_takes_part_against_a_malicious_server_when_others_are_killed(processes, tmp_path, scheme):
    """One client is killed before its upload and one after it, so that keys and seeds are rebuilt from shares."""
    keys = ["federation.rounds=1", f"app.options.dim={DIM}", "privacy.epsilon=50", "performance.chunks=2"]
    keys += [f"privacy.noise.scheme={scheme}", "protocol.threshold=4", "protocol.tolerance=2"]
    fleet = DeployedRun(processes, tmp_path, 6, [*keys, "deployment.wait=600", "deployment.deadlines.grace=1"])
    fleet.serve()
    client, end = joined(fleet, "mutual")
    for u, kill in {1: (1, "CollectInput"), 2: None, 4: (1, "Unmask"), 5: None, 6: None}.items():
        fleet.join(u, kill=kill)
    assert fleet.end() == 0
    assert end.result(HANG)["type"] == "Shutdown"
    assert {"Agree", "Unmask"} <= {*client.asked}
    assert scheme == "single" or "RemoveNoise" in client.asked  # `single`: only if the lot falls on the killed client
    (record,) = fleet.stored().rounds
    assert {u for clients in record.dropped.values() for u in clients} == {1, 4}
    check_sums(fleet)
    assert fleet.check_ledger().reserved == 0


class PlainContributor:
    """A client whose contribution is made from the page; it decodes and encodes by itself."""

    def __init__(self, me, x):
        self._me, self._x = me, x

    def handle(self, request):
        given = plain_encoding.decode_frame(wire.encode(request))["parameters"]
        self._made = made = Contribution(self._me, secret(b"client", self._me), given)
        vector = made.vector(self._x.astype(np.int64))
        return wire.decode(plain_encoding.encode_frame(made.message(vector)), assisted.SignedContribution, bulk=vector)

    def issued(self, chunk):
        return IssuedSecrets(tuple(self._made.private[chunk]), tuple(self._made.removable[chunk]))


@pytest.mark.parametrize(("m", "f", "scheme"), [(4, 1, Scheme.SINGLE), (3, 1, Scheme.EXACT), (7, 2, Scheme.ORIG)])
def test_a_contribution_written_from_the_page_is_summed_with_others(m, f, scheme):
    """Chunks have noise seeds of their own, and are slices of one mask; one of four helpers or more has no key."""
    mode, absent = ("malicious", (2,)) if m > 3 * f else ("semi-honest", ())
    chunks = {"ends": (12, 20, 30), "variances": (400, 400, 900)}
    round = AssistedRound(m=m, f=f, scheme=scheme, mode=mode, absent=absent, **chunks)
    for u in (1, 4):
        round.clients[ClientId(u)] = PlainContributor(u, round.inputs[ClientId(u)])
    round.assert_right(round.play())


@pytest.mark.network
@pytest.mark.slow
def test_a_visitor_written_from_the_page_contributes_to_an_assisted_round(processes, tmp_path):
    """The round closes at three contributions, one of them its own; without noise a missing one would show."""
    keys = ["federation.rounds=1", f"app.options.dim={DIM}", "privacy.noise.kind=none", "deployment.wait=600"]
    fleet = AssistedRun(processes, tmp_path, 3, [*keys, *assisted_keys(3, n_max=3, n_min=2)])
    fleet.serve()
    fleet.assist_missing()
    base, registry = f"https://localhost:{fleet.port}", tmp_path / "registry.json"
    visitor = PlainVisitor(base, tmp_path / f"c{PLAIN}.key", registry, PLAIN, UPDATE)
    end = ThreadPoolExecutor(1).submit(visitor.stay)
    for u in {1, 2, 3} - {PLAIN}:
        fleet.join(u)
    assert fleet.end() == 0
    end.result(HANG)
    assert visitor.taken == [0]
    assert 8 * check_sums(fleet, helpers.AssistedParameters) < 1


# The page


def test_the_plain_client_imports_nothing_of_dordis():
    """What it imports of the tests imports nothing of dordis either."""
    files = [
        Path(__file__).parent / f"plain_{name}.py" for name in ("assisted", "client", "encoding", "secagg", "visitor")
    ]
    names = imports(files)
    used = [PAGE.parents[1] / f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests.")]
    names |= imports([*used, *(PAGE.parents[1] / "tests" / "references").glob("*.py")])
    assert {name for name in names if name.split(".")[0] == "dordis"} == set()


def imports(files):
    found = set()
    for file in files:
        if not file.exists():  # `from tests.references import masks`
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
    return found


def written_messages():
    """Return the fields of every message as the page writes them, by its name."""
    text = re.sub(r"\s+", " ", PAGE.read_text())
    written: dict[str, str] = {}
    for name, fields in re.findall(r"`([A-Z]\w+) [{\[](.*?)[}\]]`", text):
        assert written.setdefault(name, fields) == fields, f"{name} is written in two ways"
    return written


NESTED = {parameters.Encoding, parameters.Projection, invitation.Terms}


def described(kind: Any) -> str:
    """Write a type as the page does."""
    if kind is None or kind is type(None):
        return "nil"
    if get_origin(kind) is dict:
        key, entry = get_args(kind)
        return f"map of {described(key)} to {described(entry)}"
    if isinstance(kind, UnionType) or get_origin(kind) is not None:
        kinds = [one for one in get_args(kind) if isinstance(one, type) or get_origin(one)]
        if get_origin(kind) not in (None, UnionType) and not isinstance(kind, UnionType):  # Annotated
            return described(get_args(kind)[0])
        known = [described(one) for one in kinds if one is not msgspec.UnsetType]
        return " or ".join(known)
    if kind is network.BodyInfo:
        return "{size: int, digest: bytes}"
    return "{..}" if kind in NESTED else kind.__name__


def fields_of(kind: Any) -> str:
    written = []
    for field in msgspec.structs.fields(kind):
        optional = "?" if field.default is msgspec.UNSET else ""
        bulk = "*" if getattr(kind, "bulk", "") == field.name else ""
        written.append(f"{field.name}: {described(field.type)}{bulk}{optional}")
    return ", ".join(written)


KINDS = {
    kind.__name__: kind
    for module in (network, invitation, delivery, secagg, assisted, helpers, cohort)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
}
APART = {"BodyInfo", "CohortOpening", "CohortState", "Options", "Terms"}
"""What is inside others, or never sent by this name."""


def test_the_page_has_the_fields_of_every_message():
    written = written_messages()
    assert {name: fields_of(kind) for name, kind in KINDS.items() if name not in APART} == written


def test_the_page_has_the_structures_inside_messages():
    text = re.sub(r"\s+", " ", PAGE.read_text())
    for kind in (invitation.Terms, parameters.Projection, parameters.RecordEncoding, parameters.FurtherRelease):
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"\b{field.name}: ", text), (kind, field.name)


def test_the_page_has_the_versions():
    text = PAGE.read_text()
    assert f"`{network.SUBPROTOCOL}`" in text
    assert network.SUBPROTOCOL == SUBPROTOCOL
    assert f"the byte {wire.VERSION}," in text
    assert assisted.VERSION == 1


def test_plain_frames_are_those_of_dordis():
    body = network.BodyInfo(70_000, bytes(range(32)))
    messages = [
        network.Request(2**40, bytes(300), body),
        network.Reply(128, b"", None),
        network.Shutdown(True, "a reason of more than thirty-one bytes"),
        secagg.Unmask(0, b"\x07", {u: bytes(64) for u in range(20)}),
        delivery.Dispatch(1, 70_000, b""),
    ]
    for message in messages:
        frame = wire.encode(message)
        read = plain_encoding.decode_frame(frame)
        assert read["type"] == type(message).__name__
        assert plain_encoding.encode_frame(read) == frame
    with pytest.raises(ValueError, match="encoding"):
        plain_encoding.decode_frame(wire.encode(messages[0]) + b"\x00")
    with pytest.raises(ValueError, match="version"):
        plain_encoding.decode_frame(b"\x04" + wire.encode(messages[0])[1:])
