"""A client's installation: a run is accepted only if its manifest is what the owner has agreed to."""

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from dordis.errors import BudgetRefused, InputError, MalformedMessage, ParametersRefused, ProtocolError
from dordis.identity.registry import Member, Registry, RevokedKeys
from dordis.network.client_setup import ClientInstallation, check_record_seconds, create_participant, install
from dordis.network.deployment import deployable_config
from dordis.network.messages import Welcome
from dordis.owner.directory import AcceptedRuns, ClientDirectory
from dordis.owner.manifest_checks import read_manifest
from dordis.owner.participation import Limits
from dordis.protocols.assisted import AssistedHelper
from dordis.protocols.assisted.messages import Introduce, SendContribution, SignedContribution
from dordis.protocols.costs import RoundCost
from dordis.records.manifest import encode_manifest
from dordis.rounds.invitation import Invite, SendModel, Terms, Train
from dordis.rounds.model import ModelBytes
from dordis.rounds.user_code import ZeroOnFailure
from dordis.runs.job import prepare
from dordis.runs.run import manifest_of
from dordis.selection.beacon import FileBeacon
from dordis.selection.colluders import window_quantile
from dordis.selection.selection import BalancedSelection
from tests.network.assisted_run import assisted_keys
from tests.network.local_server import HANG, enrol
from tests.network.process_roles import Constant, Total, settings
from tests.runs.cohorts import keys_of, registry_of

pytestmark = pytest.mark.network

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
CREATED = "2026-01-31T11:59:00.000000Z"
KEYS = ["federation.clients=6", "federation.per_round=4", "federation.rounds=3"]


def job_of(*keys):
    return prepare(deployable_config(settings([*KEYS, *keys])), Total())


def installation(folder, *keys, published=None, now=NOW):
    registry, directory = registry_of(*range(1, 7)), ClientDirectory(folder / "state")
    return ClientInstallation(
        1, Constant(0), job_of(*keys), registry, keys_of(1), directory, published, now=lambda: now
    )


def welcome(client, *keys, created=CREATED, **changes):
    """Return the welcome of a server that is configured by these keys."""
    shown = msgspec.structs.replace(manifest_of(job_of(*keys), client, created), **changes)
    return welcome_with(encode_manifest(shown))


def welcome_with(data):
    return Welcome(1, hashlib.sha256(data).digest(), data, bytes(32))


def test_a_run_as_it_was_agreed_on_is_taken_whatever_is_of_one_machine_alone(tmp_path):
    client = installation(tmp_path)
    local = [
        "name=theirs",
        "output=there",
        "performance.threads=1",
        "deployment.port=1",
        "deployment.deadlines.train=9",
    ]
    for number, keys in enumerate(
        [[], local, ["app.client=tests.network.process_roles:Elsewhere", "app.options.data=mine"]]
    ):
        shown = welcome(client, *keys, created=f"2026-01-31T11:5{number}:00.000000Z", version="another")
        assert client.create_client(shown).me == 1


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
        ("app.server=tests.network.process_roles:Elsewhere", "config.app.server"),
    ],
)
def test_the_first_field_that_differs_is_named(tmp_path, key, field):
    client = installation(tmp_path)
    with pytest.raises(ParametersRefused, match=f"'{field}' is .* here and .* in the manifest"):
        client.create_client(welcome(client, key))
    assert not (tmp_path / "state" / "runs").exists()


@pytest.mark.parametrize("changes", [{"registry": "00" * 32}, {"clients": 7}, {"fidelity": "ideal"}, {"selection": ""}])
def test_what_the_manifest_says_beside_the_configuration_is_compared_too(tmp_path, changes):
    client = installation(tmp_path)
    with pytest.raises(ParametersRefused, match=f"'{next(iter(changes))}' is"):
        client.create_client(welcome(client, **changes))


def test_what_a_server_writes_is_shown_without_control_characters(tmp_path):
    client = installation(tmp_path)
    config = manifest_of(client.job, client, CREATED).config
    with pytest.raises(ParametersRefused, match=r"'config.\?\[2J' is not there here and \?\?x in the manifest"):
        client.create_client(welcome(client, config=config | {"\x1b[2J": "\r\nx"}))

    strange = welcome(client).manifest.replace(b'"name"', b'"\\u001bname": 1, "name"', 1)
    with pytest.raises(MalformedMessage, match=r"unknown field `\?name`"):
        client.create_client(welcome_with(strange))


def test_a_plan_that_differs_is_refused_and_one_that_is_rounded_otherwise_is_not(tmp_path):
    client = installation(tmp_path)
    plan = manifest_of(client.job, client, CREATED).plan
    client.create_client(welcome(client, plan=msgspec.structs.replace(plan, sigma=float(np.nextafter(plan.sigma, 0)))))
    with pytest.raises(ParametersRefused, match=r"'plan\.sigma'"):
        client.create_client(welcome(client, plan=msgspec.structs.replace(plan, sigma=0.999 * plan.sigma)))


def test_a_run_id_that_is_not_the_hash_of_the_manifest_is_refused(tmp_path):
    client = installation(tmp_path)
    good = welcome(client)
    for run in (bytes(32), good.run[:-1], good.run + b"x", b""):
        with pytest.raises(ProtocolError, match="not the hash of the manifest"):
            client.create_client(msgspec.structs.replace(good, run=run))
    for data in (good.manifest + b" ", good.manifest[:-1], b""):
        with pytest.raises(ProtocolError, match="not the hash of the manifest"):
            client.create_client(msgspec.structs.replace(good, manifest=data))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"\xff", b"[" * 100_000, b" " * ((1 << 20) + 6 * 64) + b"{}"],
    ids=["empty", "{}", "no text", "deep", "long"],
)
def test_what_is_no_manifest_is_malformed(tmp_path, data):
    with pytest.raises(MalformedMessage, match="manifest"):
        installation(tmp_path).create_client(welcome_with(data))


@pytest.mark.parametrize("depth", [900, 990, 1000, 5000, 50_000])
def test_options_that_are_nested_deeply_do_no_harm(tmp_path, depth):
    client = installation(tmp_path)
    good = welcome(client).manifest
    data = good.replace(b'"options": {}', b'"options": ' + b'{"x":' * depth + b"1" + b"}" * depth, 1)
    assert data != good
    with suppress(MalformedMessage):  # or it is taken: what the server's application is told is its own business
        client.create_client(welcome_with(data))


def test_a_configuration_that_is_nested_deeply_is_refused(tmp_path):
    client = installation(tmp_path)
    data = welcome(client).manifest.replace(b'"name": "digits"', b'"name": ' + b'{"x":' * 900 + b"1" + b"}" * 900, 2)
    with pytest.raises((MalformedMessage, ParametersRefused)):
        client.create_client(welcome_with(data))


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
    client = installation(tmp_path)
    members = {u: keys for u, keys in members_but(**changes).items() if keys is not None}
    with pytest.raises(ParametersRefused, match=named):
        client.create_client(welcome(client, members=members))
    assert not (tmp_path / "state" / "runs").exists()


def test_a_manifest_without_members_is_refused_and_a_simulation_has_none(tmp_path):
    client = installation(tmp_path)
    with pytest.raises(ParametersRefused, match="client 1 is not a member"):
        client.create_client(welcome(client, members=msgspec.UNSET))
    simulated = SimpleNamespace(fidelity="full", where="", registry=client.registry, beacon=client.beacon, consents=())
    assert b"members" not in encode_manifest(manifest_of(client.job, simulated, CREATED))


def revoke(client, u, when="2026-01-31T12:00:00Z"):
    """Return an installation whose registry has a member less, which it lists as revoked."""
    gone = RevokedKeys(u, Member.from_identity(f"c{u}", client.registry[u]), when, "left")
    left = client.registry.restrict([v for v in client.registry if v != u])
    return replace(client, registry=left, revoked=(*client.revoked, gone))


def test_selection_and_signatures_are_those_of_the_members_of_the_run(tmp_path):
    client = installation(tmp_path)
    shown = welcome(client)
    taken = revoke(client, 5).create_client(shown)
    assert set(taken.owner.selection.permutation) == set(range(1, 7))
    assert taken.owner.selection.registry.root() == registry_of(*range(1, 7)).root()
    assert set(taken.registry) == {1, 2, 3, 4, 6}  # new rounds with the revoked client are refused


def test_a_run_began_before_its_members_were_revoked(tmp_path):
    client = installation(tmp_path)
    shown = welcome(client)
    revoke(client, 5, "2026-01-31T11:49:01Z").create_client(shown)  # the clocks may differ by ten minutes
    with pytest.raises(ParametersRefused, match=r"keys of client 5 \('c5'\) that were revoked on 2026-01-31T11:48:59Z"):
        revoke(client, 5, "2026-01-31T11:48:59Z").create_client(shown)


def test_a_run_that_omits_the_newest_members_is_refused(tmp_path):
    client = installation(tmp_path)
    members = {u: keys for u, keys in members_but().items() if u != 6}
    with pytest.raises(ParametersRefused, match=r"has 5 members, but federation\.clients is 6"):
        client.create_client(welcome(client, members=members))


def test_a_fingerprint_is_of_the_id_and_both_keys():
    one, other = keys_of(1).identity(), keys_of(2).identity()
    mixed = [type(one)(one.signing, other.vrf), type(one)(other.signing, one.vrf), other]
    prints = {one.fingerprint(1), one.fingerprint(2), *(identity.fingerprint(1) for identity in mixed)}
    assert len(prints) == 5
    assert all(len(bytes.fromhex(fingerprint)) == 16 for fingerprint in prints)


def test_ten_thousand_members_take_half_a_megabyte(tmp_path):
    members = {u: hashlib.sha256(b"%d" % u).hexdigest()[:32] for u in range(1, 10_001)}
    data = welcome(installation(tmp_path), members=members).manifest
    assert len(data) < 500_000
    assert read_manifest(data, len(members)).members == members
    farthest = {2**63 - 1 - u: keys for u, keys in members.items()}
    assert len(welcome(installation(tmp_path), members=farthest).manifest) < 64 * len(members) + 10_000


# Runs that are known


def test_a_known_run_is_taken_again_and_new_ones_are_few_a_day(tmp_path):
    def shown(number):
        return welcome(client, created=f"2026-01-31T11:00:{number:02d}.000000Z")

    limited = ["deployment.runs_a_day=3"]
    client = installation(tmp_path, *limited)
    for number in range(3):
        client.create_client(shown(number))
    restarted = installation(tmp_path, *limited, now=NOW + timedelta(hours=23))
    with pytest.raises(ParametersRefused, match=r"has accepted 3 new runs since 2026-01-31T12:00:00Z.*runs_a_day = 3"):
        restarted.create_client(shown(3))
    for number in range(3):
        restarted.create_client(shown(number))
    installation(tmp_path, *limited, now=NOW + timedelta(hours=25)).create_client(shown(3))
    lines = (tmp_path / "state" / "runs").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["run"] for line in lines] == [shown(number).run.hex() for number in range(4)]


def test_a_line_that_a_stop_cut_is_written_again_and_an_altered_file_is_refused(tmp_path):
    path = tmp_path / "runs"
    AcceptedRuns(path).accept(bytes(32), CREATED, NOW, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    AcceptedRuns(path).accept(bytes([1] * 32), CREATED, NOW, 2)
    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == 2
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"{}\n")
    with pytest.raises(InputError, match="not what dordis wrote"):
        AcceptedRuns(path).accept(bytes(32), CREATED, NOW, 2)


# The beacon


def lines(first, count):
    """Return beacon lines, one a minute, of which line 0 has the time of the manifest."""
    times = (datetime.fromisoformat(CREATED) + timedelta(minutes=i) for i in range(first, first + count))
    return "".join(f"{time:%Y-%m-%dT%H:%M:%SZ} {i + 100:064x}\n" for i, time in enumerate(times, first))


def test_the_order_follows_from_the_line_that_the_manifest_names(tmp_path):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 4))
    keys = [f"deployment.beacon={path}", "protocol.colluders=2"]
    client = installation(tmp_path, *keys, published=FileBeacon(path))
    shown = welcome(client, *keys, first_line=5)
    taken = client.create_client(shown)
    with pytest.raises(InputError, match="not published yet"):
        taken.owner.selection.window(0)
    path.write_text(lines(-3, 9))
    named = FileBeacon(path, first=5)
    expected = BalancedSelection(client.registry, shown.run, 4, 1, named).permutation
    assert taken.owner.selection.permutation == expected
    assert client.job.design.setting.colluders == window_quantile(6, 4, 2, "malicious")


@pytest.mark.parametrize(
    ("first", "error", "match"),
    [
        (0, ProtocolError, "line 1 of the beacon has the time .* not later than the run"),
        (3, ProtocolError, "line 4 of the beacon has the time 2026-01-31T11:59:00Z, not later"),
        (None, ParametersRefused, "names no first line"),
        (-1, ParametersRefused, "names no first line"),
    ],
)
def test_a_first_line_that_is_not_later_than_the_manifest_is_refused(tmp_path, first, error, match):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 9))
    keys = [f"deployment.beacon={path}"]
    client = installation(tmp_path, *keys, published=FileBeacon(path))
    with pytest.raises(error, match=match):
        client.create_client(welcome(client, *keys, first_line=first))
    client.create_client(welcome(client, *keys, first_line=4))


@pytest.mark.parametrize("created", ["", "yesterday", "2026-01-31T11:59:00", "2026-01-31T11:59:00+02:00"])
def test_a_manifest_that_rests_on_a_beacon_has_a_date(tmp_path, created):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 9))
    client = installation(tmp_path, f"deployment.beacon={path}", published=FileBeacon(path))
    with pytest.raises(MalformedMessage, match="not a time in UTC"):
        client.create_client(welcome(client, f"deployment.beacon={path}", created=created, first_line=4))


def test_a_client_needs_the_beacon_that_its_run_rests_on(tmp_path):
    with pytest.raises(InputError, match=r"set deployment\.beacon"):
        installation(tmp_path, "deployment.beacon=published.txt")


@pytest.mark.parametrize("forged", [True, False])
def test_a_client_leaves_a_server_whose_run_id_is_not_the_hash_of_its_manifest(serving, tmp_path, forged):
    folder = enrol(tmp_path, 6)
    files = folder / "c1.key", folder / "registry.json", folder / "c1.state"
    client = create_participant("https://localhost:1", settings(KEYS), 0, *files)
    (shown,) = client.create_party.__self__.installations
    data = encode_manifest(manifest_of(shown.job, shown, CREATED))
    run = bytes(32) if forged else hashlib.sha256(data).digest()
    server = serving(folder, run=run, manifest=data)
    client = create_participant(f"https://localhost:{server.server.port}", settings(KEYS), 0, *files)
    if forged:
        with pytest.raises(ProtocolError, match="not the hash of the manifest"):
            server.run(client.stay(once=True))
        assert server.server.wait(lambda clients: not clients, HANG) == frozenset()
    else:
        task = asyncio.run_coroutine_threadsafe(_stay(client), server.loop)
        assert server.server.wait(lambda clients: 1 in clients, HANG) == {1}
        task.cancel()


async def _stay(client):
    await client.stay(once=True)


def test_the_budget_of_an_owner_may_be_larger_than_the_epsilon_of_a_run_and_covers_all_runs(tmp_path):
    folder = enrol(tmp_path, 6)
    files = folder / "c1.key", folder / "registry.json", folder / "c1.state", ZeroOnFailure(print)
    alone, twice = (install(deployable_config(settings(KEYS)), 0, *files, budget)[1] for budget in (None, 12.0))
    design = alone.job.design
    assert (alone.policy.budget.epsilon, twice.policy.budget.epsilon) == (design.epsilon, 12.0)
    cost, counted = RoundCost(design.allowed, 0.0), twice.directory.participation()
    for index in range(design.cap):
        counted.reserve(bytes(32), index, cost=cost, limits=Limits(None, alone.policy.budget))
    with pytest.raises(BudgetRefused):
        counted.reserve(b"2" * 32, 0, cost=cost, limits=Limits(None, alone.policy.budget))
    counted.reserve(b"2" * 32, 0, cost=cost, limits=Limits(None, twice.policy.budget))
    assert f"of 12 at delta {design.delta:.3g} in {design.cap + 1} rounds" in twice.describe_spending()


@pytest.mark.parametrize(("seconds", "agreed"), [(0.5, 1.4), (0.5, None)])
def test_a_client_whose_largest_batch_takes_more_than_a_third_of_the_agreed_time_does_not_join(seconds, agreed):
    with pytest.raises(InputError, match=r"agree on 1\.5 or more"):
        check_record_seconds(seconds, agreed)
    check_record_seconds(0.5, 1.5)


def test_records_are_not_deployed_without_a_fixed_time_of_training():
    keys = ["privacy.unit=record", "privacy.records=9", "protocol.mode=semi-honest"]
    without = msgspec.structs.replace(settings([]).deployment, train_seconds=None)
    with pytest.raises(InputError, match=r"deployment\.train_seconds must be set"):
        deployable_config(msgspec.structs.replace(settings(keys), deployment=without))


SEVEN = ["federation.clients=6", "federation.rounds=3", *assisted_keys(6, 5, 3, helpers=7), "protocol.options.faulty=2"]
"""Settings of assisted rounds with seven helpers, 7 to 13, of whom two may collude."""


class HostileTask:
    """A client that agreed to SEVEN, and a server that shows the agreed manifest and makes tasks by other settings."""

    def __init__(self, folder):
        self.registry = Registry(registry_of(*range(1, 7)), registry_of(*range(7, 15)))
        job, directory = self.job(SEVEN), ClientDirectory(folder / "state")
        named = Registry(self.registry, {h: self.registry.helpers[h] for h in range(7, 14)})
        self.owner = ClientInstallation(1, Constant(0), job, named, keys_of(1), directory, now=lambda: NOW)
        self.shown = welcome_with(encode_manifest(manifest_of(job, self.owner, CREATED)))
        self.run, self.client = self.shown.run, self.owner.create_client(self.shown)

    def job(self, keys):
        return prepare(deployable_config(settings(keys)), Total())

    def answer(self, *keys, **changes):
        """Have the client answer a task that the server made by other settings, up to its contribution."""
        job = self.job([*SEVEN, *keys])
        model, helpers = ModelBytes.from_numbers(job.app.model(), job.app.dtype), self.registry.helpers
        shown = {h: self.introduce(h) for h in helpers if h in job.protocol.helper_ids}
        self.parameters = parameters = job.design.agree_on(
            run=self.run, index=0, clients=(), rotation=bytes(32), model=model.digest, introductions=shown
        )
        root = self.owner.registry.root()
        terms, form = Terms.from_parameters(parameters), (model.digest, len(model.data), model.dtype)
        invite = Invite(parameters.round, 1, "assisted", root, job.app.dim, terms, *form)
        self.client.handle(msgspec.structs.replace(invite, **changes))
        for offset, piece in model.pieces():
            self.client.handle(SendModel(offset, piece))
        self.client.handle(Train())
        return self.client.handle(SendContribution(parameters))

    def introduce(self, h):
        helper = AssistedHelper(h, secret=keys_of(h).signing, registry=self.registry.signing_keys())
        return helper.handle(Introduce(self.run + bytes(8)))


def test_a_task_as_it_was_agreed_on_gets_a_contribution_which_is_counted_before(tmp_path):
    task = HostileTask(tmp_path)
    assert isinstance(task.answer(), SignedContribution)
    assert task.owner.directory.participation().count() == 1


@pytest.mark.parametrize(
    ("line", "keys", "changes"),
    [
        ("'helpers'", [f"protocol.options.helpers={[*range(7, 13), 14]}"], {}),
        ("'faulty_helpers'", ["protocol.options.faulty=1"], {}),
        ("'honest_helpers'", [f"protocol.options.helpers={[*range(7, 13)]}", "protocol.options.abort=true"], {}),
        ("'no_base'", ["protocol.options.no_base=true"], {}),
        ("'cohort'", ["protocol.tolerance=1", "federation.per_round=3"], {}),
        ("'colluders'", ["protocol.colluders=0"], {}),
        ("protocol", [], {"protocol": "secagg"}),
        ("registry", [], {"registry": bytes(32)}),
    ],
)
def test_a_task_beyond_what_the_owner_agreed_to_is_refused_although_the_manifest_is_right(
    tmp_path, line, keys, changes
):
    task = HostileTask(tmp_path)
    with pytest.raises(ParametersRefused, match=line):
        task.answer(*keys, **changes)
    assert task.owner.directory.participation().count() == 0


def test_a_second_task_of_an_index_gets_no_contribution(tmp_path):
    task = HostileTask(tmp_path)
    task.answer()
    task.client.close()  # it was acknowledged
    for _ in range(2):  # the second time after a restart
        with pytest.raises(ProtocolError, match=r"another invitation|has left"):
            task.answer("federation.per_round=6")
        task.client = task.owner.create_client(task.shown)
    assert task.owner.directory.participation().count() == 1


def test_a_restarted_client_sends_the_same_bytes_again_and_no_others(tmp_path):
    task = HostileTask(tmp_path)
    first, parameters = task.answer(), task.parameters
    for _ in range(2):
        task.client.stop()
        task.client = task.owner.create_client(task.shown)
        assert task.client.handle(SendContribution(parameters)) == first
    assert task.owner.directory.participation().count() == 1
    other = msgspec.structs.replace(parameters, beacon=bytes([1]) * 32)
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"another request|before an invitation"):
            task.client.handle(SendContribution(other))
        task.client.stop()
        task.client = task.owner.create_client(task.shown)
