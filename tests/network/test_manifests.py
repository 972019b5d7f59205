"""The run id is the hash of a manifest that the client's owner has agreed to, and not the server's word."""

import asyncio
import hashlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError, MalformedMessage, ParametersRefused, ProtocolError
from dordis.federation.beacon import FileBeacon, SeedBeacon
from dordis.federation.client_directory import ClientDirectory
from dordis.federation.colluders import window_quantile
from dordis.federation.job import prepare
from dordis.federation.known_runs import KnownRuns
from dordis.federation.manifest import encode_manifest
from dordis.federation.manifest_checks import read_manifest
from dordis.federation.registry import Registry
from dordis.federation.run import check_same, manifest_of
from dordis.federation.selection import Balanced
from dordis.network.deploy import deployed, participant
from dordis.network.member import Installed
from dordis.network.messages import Welcome
from dordis.protocols.delivery import Dispatch, Received
from dordis.protocols.plaintext.messages import Begin
from tests.federation.cohorts import keys_of, registry_of
from tests.network.actors import Constant, Total, settings
from tests.network.deployed import Deployed
from tests.network.federation import enrol
from tests.network.local import HANG, LocalServer
from tests.network.relay import Relay
from tests.network.test_server import PARAMETERS, Answers

pytestmark = pytest.mark.network

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
CREATED = "2026-01-31T11:59:00.000000Z"
KEYS = ["federation.clients=6", "federation.per_round=4", "federation.rounds=3"]


def job_of(*keys):
    return prepare(deployed(settings([*KEYS, *keys])), Total())


def installed(folder, *keys, published=None, now=NOW):
    registry, directory = registry_of(*range(1, 7)), ClientDirectory(folder / "state")
    return Installed(1, Constant(0), job_of(*keys), registry, keys_of(1), directory, published, now=lambda: now)


def welcome(client, *keys, created=CREATED, **changes):
    """Return what a server says that is configured by these keys."""
    shown = msgspec.structs.replace(manifest_of(job_of(*keys), client, created), **changes)
    return of_bytes(encode_manifest(shown))


class Elsewhere:
    """What a manifest says of where clients are, but for its beacon."""

    beacon, registry = SeedBeacon(bytes(32)), registry_of(*range(1, 7))
    fidelity, where, consents = "deployed", "elsewhere", ()


def of_bytes(data):
    return Welcome(1, hashlib.sha256(data).digest(), data, bytes(32))


def test_a_run_as_it_was_agreed_on_is_taken_whatever_is_of_one_machine_alone(tmp_path):
    client = installed(tmp_path)
    local = [
        "name=theirs",
        "output=there",
        "performance.receivers=1",
        "deployment.port=1",
        "deployment.deadlines.train=9",
    ]
    for number, keys in enumerate([[], local, ["app.client=tests.network.actors:Elsewhere", "app.options.data=mine"]]):
        shown = welcome(client, *keys, created=f"2026-01-31T11:5{number}:00.000000Z", version="another")
        assert client.client(shown).me == 1


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("privacy.epsilon=60", "config.privacy.epsilon"),
        ("privacy.noise.kind=orig", "config.privacy.noise.kind"),
        ("privacy.clip=2", "config.privacy.clip"),
        ("federation.rounds=4", "config.federation.rounds"),
        ("federation.per_round=5", "config.federation.per_round"),
        ("federation.tries=9", "config.federation.tries"),
        ("federation.selection=vrf", "config.federation.selection"),
        ("protocol.colluders=0", "config.protocol.colluders"),
        ("protocol.mode=semi-honest", "config.protocol.mode"),
        ("protocol.tolerance=0", "config.protocol.tolerance"),
        ("app.server=tests.network.actors:Elsewhere", "config.app.server"),
    ],
)
def test_the_first_field_that_differs_is_named(tmp_path, key, field):
    client = installed(tmp_path)
    with pytest.raises(ParametersRefused, match=f"'{field}' is .* here and .* in the manifest"):
        client.client(welcome(client, key))
    assert not (tmp_path / "state" / "runs").exists()


@pytest.mark.parametrize("changes", [{"registry": "00" * 32}, {"clients": 7}, {"fidelity": "ideal"}, {"selection": ""}])
def test_what_the_manifest_says_beside_the_configuration_is_compared_too(tmp_path, changes):
    client = installed(tmp_path)
    with pytest.raises(ParametersRefused, match=f"'{next(iter(changes))}' is"):
        client.client(welcome(client, **changes))


def test_what_a_server_writes_is_shown_without_control_characters(tmp_path):
    client = installed(tmp_path)
    config = manifest_of(client.job, client, CREATED).config
    with pytest.raises(ParametersRefused, match=r"'config.\?\[2J' is not there here and \?\?x in the manifest"):
        client.client(welcome(client, config=config | {"\x1b[2J": "\r\nx"}))

    strange = welcome(client).manifest.replace(b'"name"', b'"\\u001bname": 1, "name"', 1)
    with pytest.raises(MalformedMessage, match=r"unknown field `\?name`"):
        client.client(of_bytes(strange))


def test_a_plan_that_differs_is_refused_and_one_that_is_rounded_otherwise_is_not(tmp_path):
    client = installed(tmp_path)
    plan = manifest_of(client.job, client, CREATED).plan
    client.client(welcome(client, plan=msgspec.structs.replace(plan, sigma=float(np.nextafter(plan.sigma, 0)))))
    with pytest.raises(ParametersRefused, match=r"'plan\.sigma'"):
        client.client(welcome(client, plan=msgspec.structs.replace(plan, sigma=0.999 * plan.sigma)))


def test_a_run_id_that_is_not_the_hash_of_the_manifest_is_refused(tmp_path):
    client = installed(tmp_path)
    good = welcome(client)
    for run in (bytes(32), good.run[:-1], good.run + b"x", b""):
        with pytest.raises(ProtocolError, match="not the hash of the manifest"):
            client.client(msgspec.structs.replace(good, run=run))
    for data in (good.manifest + b" ", good.manifest[:-1], b""):
        with pytest.raises(ProtocolError, match="not the hash of the manifest"):
            client.client(msgspec.structs.replace(good, manifest=data))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"\xff", b"[" * 100_000, b" " * ((1 << 20) + 6 * 64) + b"{}"],
    ids=["empty", "{}", "no text", "deep", "long"],
)
def test_what_is_no_manifest_is_malformed(tmp_path, data):
    with pytest.raises(MalformedMessage, match="manifest"):
        installed(tmp_path).client(of_bytes(data))


@pytest.mark.parametrize("depth", [900, 990, 1000, 5000, 50_000])
def test_options_that_are_nested_deeply_do_no_harm(tmp_path, depth):
    client = installed(tmp_path)
    good = welcome(client).manifest
    data = good.replace(b'"options": {}', b'"options": ' + b'{"x":' * depth + b"1" + b"}" * depth)
    assert data != good
    with suppress(MalformedMessage):  # or it is taken: what the server's application is told is its own business
        client.client(of_bytes(data))


def test_a_configuration_that_is_nested_deeply_is_refused(tmp_path):
    client = installed(tmp_path)
    data = welcome(client).manifest.replace(b'"name": "digits"', b'"name": ' + b'{"x":' * 900 + b"1" + b"}" * 900, 2)
    with pytest.raises((MalformedMessage, ParametersRefused)):
        client.client(of_bytes(data))


# Members


def members_but(**changes):
    """Return the members of the registry with some changes, by the id in the name of each: None leaves one out."""
    return registry_of(*range(1, 7)).fingerprints() | {int(name[1:]): keys for name, keys in changes.items()}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"c5": None}, "client 5 is not a member in the manifest of the run and a member with keys .* in the registry"),
        ({"c7": "00" * 16}, "client 7 is a member with keys 0{32} in the manifest of the run and not a member in the"),
        ({"c6": "00" * 16}, "client 6 is a member with keys 0{32} in the manifest of the run and a member with keys"),
        ({"c3": None, "c2": "", "c9": "00" * 16}, "client 2 is a member with keys  in"),
        ({"c4": "0" * 900}, "client 4 is a member with keys 0{80} in"),
        ({"c4": "\n\x1b[2J"}, r"client 4 is a member with keys \?\?\[2J in"),
        ({"c1": None, "c2": None}, "client 1 is not a member of the server's run: .* joins its successor"),
    ],
)
def test_the_first_member_that_differs_is_named(tmp_path, changes, named):
    client = installed(tmp_path)
    members = {u: keys for u, keys in members_but(**changes).items() if keys is not None}
    with pytest.raises(ParametersRefused, match=named):
        client.client(welcome(client, members=members))
    assert not (tmp_path / "state" / "runs").exists()


def test_a_manifest_without_members_is_refused_and_a_simulation_has_none(tmp_path):
    client = installed(tmp_path)
    with pytest.raises(ParametersRefused, match="client 1 is not a member"):
        client.client(welcome(client, members=msgspec.UNSET))
    simulated = SimpleNamespace(fidelity="full", where="", registry=client.registry, beacon=client.beacon, consents=())
    assert b"members" not in encode_manifest(manifest_of(client.job, simulated, CREATED))


def test_selection_and_signatures_are_those_of_the_members_of_the_run(tmp_path, monkeypatch):
    """The check is taken out: what the manifest lists decides, as it must when a registry has changed since."""
    monkeypatch.setattr("dordis.network.member.check_members", lambda *_: None)
    client = installed(tmp_path)
    members = {u: keys for u, keys in members_but().items() if u != 5}
    taken = client.client(welcome(client, members=members))
    assert set(taken.owner.selection.permutation) == set(members)
    assert taken.owner.selection.registry.root() == registry_of(1, 2, 3, 4, 6).root()


def test_a_fingerprint_is_of_the_id_and_both_keys():
    one, other = keys_of(1).identity(), keys_of(2).identity()
    mixed = [type(one)(one.signing, other.vrf), type(one)(other.signing, one.vrf), other]
    prints = {one.fingerprint(1), one.fingerprint(2), *(identity.fingerprint(1) for identity in mixed)}
    assert len(prints) == 5
    assert all(len(bytes.fromhex(fingerprint)) == 16 for fingerprint in prints)


def test_ten_thousand_members_take_half_a_megabyte(tmp_path):
    members = {u: hashlib.sha256(b"%d" % u).hexdigest()[:32] for u in range(1, 10_001)}
    data = welcome(installed(tmp_path), members=members).manifest
    assert len(data) < 500_000
    assert read_manifest(data, len(members)).members == members
    farthest = {2**63 - 1 - u: keys for u, keys in members.items()}
    assert len(welcome(installed(tmp_path), members=farthest).manifest) < 64 * len(members) + 10_000


# Runs that are known


def test_a_known_run_is_taken_again_and_new_ones_are_few_a_day(tmp_path):
    def shown(number):
        return welcome(client, created=f"2026-01-31T11:00:{number:02d}.000000Z")

    limited = ["deployment.runs_a_day=3"]
    client = installed(tmp_path, *limited)
    for number in range(3):
        client.client(shown(number))
    restarted = installed(tmp_path, *limited, now=NOW + timedelta(hours=23))
    with pytest.raises(ParametersRefused, match=r"has accepted 3 new runs since 2026-01-31T12:00:00Z.*runs_a_day = 3"):
        restarted.client(shown(3))
    for number in range(3):
        restarted.client(shown(number))
    installed(tmp_path, *limited, now=NOW + timedelta(hours=25)).client(shown(3))
    lines = (tmp_path / "state" / "runs").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["run"] for line in lines] == [shown(number).run.hex() for number in range(4)]


def test_a_line_that_a_stop_cut_is_written_again_and_an_altered_file_is_refused(tmp_path):
    path = tmp_path / "runs"
    KnownRuns(path).accept(bytes(32), CREATED, NOW, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    KnownRuns(path).accept(bytes([1] * 32), CREATED, NOW, 2)
    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == 2
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"{}\n")
    with pytest.raises(InputError, match="not what dordis wrote"):
        KnownRuns(path).accept(bytes(32), CREATED, NOW, 2)


# The beacon


def lines(first, count):
    """Return lines of which line 0 is of the manifest's time, a minute each."""
    times = (datetime.fromisoformat(CREATED) + timedelta(minutes=i) for i in range(first, first + count))
    return "".join(f"{time:%Y-%m-%dT%H:%M:%SZ} {i + 100:064x}\n" for i, time in enumerate(times, first))


def test_the_order_follows_from_the_line_that_the_manifest_names(tmp_path):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 4))
    keys = [f"deployment.beacon={path}", "protocol.colluders=2"]
    client = installed(tmp_path, *keys, published=FileBeacon(path))
    shown = welcome(client, *keys, first_line=5)
    taken = client.client(shown)
    with pytest.raises(InputError, match="not published yet"):
        taken.owner.selection.window(0)
    path.write_text(lines(-3, 9))
    named = FileBeacon(path, first=5)
    expected = Balanced(client.registry, shown.run, 4, 1, named).permutation
    assert taken.owner.selection.permutation == expected
    assert client.job.design.setting.colluders == window_quantile(6, 4, 2, "malicious")


@pytest.mark.parametrize(
    ("first", "error", "match"),
    [
        (0, ProtocolError, "line 1 of the beacon has the time .* not later than the run"),
        (3, ProtocolError, "line 4 of the beacon has the time 2026-01-31T11:59:00Z, not later"),
        (None, ParametersRefused, "names no line"),
        (-1, ParametersRefused, "names no line"),
    ],
)
def test_a_first_line_that_is_not_later_than_the_manifest_is_refused(tmp_path, first, error, match):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 9))
    keys = [f"deployment.beacon={path}"]
    client = installed(tmp_path, *keys, published=FileBeacon(path))
    with pytest.raises(error, match=match):
        client.client(welcome(client, *keys, first_line=first))
    client.client(welcome(client, *keys, first_line=4))


@pytest.mark.parametrize("created", ["", "yesterday", "2026-01-31T11:59:00", "2026-01-31T11:59:00+02:00"])
def test_a_manifest_that_rests_on_a_beacon_has_a_date(tmp_path, created):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 9))
    client = installed(tmp_path, f"deployment.beacon={path}", published=FileBeacon(path))
    with pytest.raises(MalformedMessage, match="not a time in UTC"):
        client.client(welcome(client, f"deployment.beacon={path}", created=created, first_line=4))


def test_a_client_needs_the_beacon_that_its_run_rests_on(tmp_path):
    with pytest.raises(InputError, match=r"set deployment\.beacon"):
        installed(tmp_path, "deployment.beacon=published.txt")


@pytest.mark.parametrize("began", ["", "published.txt"])
def test_a_run_goes_on_with_a_beacon_if_it_began_with_one_wherever_its_file_is(tmp_path, began):
    def config(beacon):
        return deployed(settings([*KEYS, f"deployment.beacon={beacon}"]))

    manifest = manifest_of(prepare(config(began), Total()), Elsewhere(), CREATED)
    records = SimpleNamespace(path=tmp_path, manifest=read_manifest(encode_manifest(manifest), 6))
    check_same(config("moved.txt" if began else ""), records)
    with pytest.raises(InputError, match=f"began {'with' if began else 'without'} a beacon"):
        check_same(config("" if began else "published.txt"), records)


# Over the network


@pytest.mark.parametrize("forged", [True, False])
def test_a_client_leaves_a_server_whose_run_id_is_not_the_hash_of_its_manifest(tmp_path, forged):
    folder = enrol(tmp_path, 6)
    files = folder / "c1.key", folder / "registry.json", folder / "c1.state"
    client = participant("https://localhost:1", settings(KEYS), 0, *files)
    shown = client.made.__self__
    data = encode_manifest(manifest_of(shown.job, shown, CREATED))
    run = bytes(32) if forged else hashlib.sha256(data).digest()
    server = LocalServer(folder, run=run, manifest=data)
    client = participant(f"https://localhost:{server.server.port}", settings(KEYS), 0, *files)
    try:
        if forged:
            with pytest.raises(ProtocolError, match="not the hash of the manifest"):
                server.run(client.stay(once=True))
            assert server.server.wait(lambda there: not there, 60) == frozenset()
        else:
            task = asyncio.run_coroutine_threadsafe(_staying(client), server.loop)
            assert server.server.wait(lambda there: 1 in there, 60) == {1}
            task.cancel()
    finally:
        server.close()


def test_a_client_that_comes_back_is_not_sent_the_manifest_again_unless_it_was_restarted(tmp_path, monkeypatch):
    server, shown = LocalServer(enrol(tmp_path, 1), manifest=b"manifest", grace=HANG, stage=HANG), []
    admitted, relay = server.server._admitted, Relay(server.server.port)

    async def admit(request, socket):
        shown.append(await admitted(request, socket))
        return shown[-1]

    monkeypatch.setattr(server.server, "_admitted", admit)
    first = server.join(1, Answers(1), port=relay.port, once=False)
    assert server.ask({1: Begin(PARAMETERS)}).keys() == {1}
    relay.cut()
    assert server.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    first.cancel()
    server.server.wait(lambda there: not there, HANG)
    server.join(1, Answers(1))
    assert [one.manifest for one in (shown[0], shown[1], shown[-1])] == [b"manifest", b"", b"manifest"]
    relay.close()
    server.close()


async def _staying(client):
    await client.stay(once=True)


@pytest.mark.slow
def test_a_deployed_run_waits_for_a_line_that_is_later_than_its_manifest(zygote, tmp_path):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 2))
    keys = [f"deployment.beacon={path}", "federation.per_round=4", "federation.rounds=2", "app.options.dim=100000"]
    fleet = Deployed(zygote, tmp_path, 6, [*keys, "deployment.wait=600"])
    fleet.serve()
    for u in range(1, 7):
        fleet.join_and_wait(u)
    manifest = fleet.stored().manifest
    assert (manifest.first_line, manifest.beacon) == (3, "file: published.txt")
    assert not fleet.stored().rounds
    began, now = path.read_text(), datetime.now(UTC)
    later = [f"{now + timedelta(minutes=i):%Y-%m-%dT%H:%M:%SZ} {i:064x}\n" for i in range(1, 3)]
    path.write_text(began + "".join(later))
    assert fleet.end() == 0
    run = fleet.stored()
    order = Balanced(Registry.load(fleet.run / "registry.json"), run.id, 4, 1, FileBeacon(path, first=3))
    assert [set(done.clients) for done in run.rounds] == [order.window(done.index) for done in run.rounds]
    fleet.check_sums()
