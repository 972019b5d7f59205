"""Assisted rounds over HTTPS, by whole processes: clients that visit, helpers, and kills of each of them."""

import re
import statistics
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from dordis.identity.registry import Registry
from dordis.owner.directory import ClientDirectory
from dordis.selection.selection import BalancedSelection
from tests.adversary.directories import rewrite_receipts
from tests.adversary.receipts import doubled
from tests.cli.in_process import dordis
from tests.network.assisted_run import HELPERS, AssistedCommands, AssistedRun, assisted_keys
from tests.network.test_client_setup import lines

pytestmark = [pytest.mark.network, pytest.mark.slow]

CLIENTS, N_MIN = 5, 3
KEYS = [
    "federation.rounds=200",  # a client's count of rounds is over all runs
    "federation.participations=200",
    "app.options.dim=100000",
    "deployment.wait=600",
    "deployment.runs_a_day=1000",  # every kill is in a run of its own
    "deployment.deadlines.grace=1",
]
VISITORS, ROUNDS = 12, 2


@pytest.fixture
def fleet(processes, tmp_path):
    fleet = AssistedRun(processes, tmp_path, CLIENTS, [*KEYS, *assisted_keys(CLIENTS, CLIENTS, N_MIN)])
    yield fleet
    fleet.stop()


@pytest.fixture
def commands(processes, tmp_path):
    keys = [*assisted_keys(VISITORS, 10, 8), f"federation.rounds={ROUNDS}", f"federation.participations={ROUNDS}"]
    keys += ["app.client=tests.network.process_roles:Following", "deployment.wait=600"]
    commands = AssistedCommands(processes, tmp_path, VISITORS, keys)
    yield commands
    commands.stop()


def check_one_round(fleet):
    """Check that the run has one round with everybody's contribution, and the right sum."""
    (record,) = fleet.stored().rounds
    assert record.clients == tuple(range(1, CLIENTS + 1))
    assert fleet.check_sums() == 1
    assert fleet.check_ledger().reserved == 0
    return record


def test_twelve_clients_take_part_by_three_requests_a_round_and_epsilon_is_as_planned(commands):
    commands.serve()
    commands.assist_all()
    for u in range(1, VISITORS + 1):
        commands.join(u)
    assert commands.processes.wait(commands.server) == 0
    stored = commands.stored()
    assert [len(record.clients) for record in stored.rounds] == [10] * ROUNDS
    assert stored.result.epsilon == pytest.approx(6.0, rel=1e-6)
    logs = [commands.client_log(u) for u in range(1, VISITORS + 1)]
    # Who was in the round before makes the model from its sum, which is shorter; it has the digest of the task.
    assert any("made the model of the round from the sums of 1 rounds" in log for log in logs)
    requests = [int(count) for log in logs for count in re.findall(r"connected for [\d.]+ s in (\d+) requests", log)]
    assert len(requests) >= 10 * ROUNDS - VISITORS  # a client may be killed before it logs its last round
    # The first time a client fetches the manifest, too; a slow machine may have it repeat a request.
    assert min(requests) == 3
    assert statistics.median(requests) <= 4


@pytest.mark.parametrize("selection", ["balanced", "vrf"])
def test_scheduled_clients_alone_contribute(processes, tmp_path, selection):
    """By the window, four of six clients; by lots that all win, everyone, with a beacon that each party reads."""
    n_max = 4 if selection == "balanced" else 6
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 2))
    keys = [*assisted_keys(6, n_max, 3), "federation.arrival=invited", f"federation.selection={selection}"]
    keys += ["federation.rounds=2", "app.options.dim=100000", "deployment.wait=600"]
    keys += [f"deployment.beacon={path}"] if selection == "vrf" else []
    fleet = AssistedRun(processes, tmp_path, 6, keys)
    fleet.serve()
    for h in range(1, HELPERS + 1):
        fleet.assist(h, beacon=str(path))
    fleet.join_missing()
    now = datetime.now(UTC)
    later = [f"{now + timedelta(minutes=i):%Y-%m-%dT%H:%M:%SZ} {i:064x}\n" for i in range(1, 15)]
    path.write_text(path.read_text() + "".join(later))
    assert fleet.end() == 0
    stored = fleet.stored()
    assert [len(record.clients) for record in stored.rounds] == [n_max] * 2
    if selection == "balanced":
        order = BalancedSelection(Registry.load(fleet.run / "registry.json"), stored.id, n_max, 1)
        assert [set(done.clients) for done in stored.rounds] == [order.window(done.index) for done in stored.rounds]
    assert fleet.check_sums() == 2
    assert 5 < stored.result.epsilon <= 6
    fleet.check_ledger()
    fleet.stop()


@pytest.mark.parametrize("place", [6, 37, 45])
def test_a_round_is_finished_without_a_helper_that_is_killed(fleet, place):
    """Killed while it stores keys, boxes, or U3; it does not come back."""
    fleet.serve(only=1)
    fleet.assist(1, dies=place)
    for h in range(2, HELPERS + 1):
        fleet.assist(h)
    fleet.join_missing()
    assert fleet.end(but=1) == 0
    check_one_round(fleet)
    assert fleet.processes.wait(fleet.helpers[1]) != 0


def test_clients_refuse_a_restarted_server_that_rewrote_their_round(fleet):
    """The rewritten receipt has valid hashes, and the server resumes the run without a complaint."""
    fleet.serve(only=2)
    fleet.assist_missing()
    fleet.join_missing()
    assert fleet.end() == 0
    run, kept = fleet.stored().id, ClientDirectory(fleet.folder / "c1.state").receipts
    known = kept.read(run)
    assert sorted(known.attended) == [0, 1]
    assert not known.unlisted  # both were acknowledged
    assert known.shown[0].receipt is not None  # it came with the task of the second round
    assert dordis("verify", fleet.run, "--kept", kept.file(run)).returncode == 0
    rewrite_receipts(fleet.run, lambda one: replace(one, left=doubled(one.left)))
    assert "was replaced" in dordis("verify", fleet.run, "--kept", kept.file(run)).stderr
    fleet.serve(resume=fleet.run)
    fleet.assist_missing()
    fleet.join(1)
    assert fleet.processes.wait(fleet.clients[1]) != 0
    assert "contradicts what this client kept" in (fleet.folder / "c1.log").read_text()


@pytest.mark.parametrize("place", [3, 12, 21, 30, 39])
def test_a_server_killed_at_a_commit_goes_on_with_the_same_contributions(fleet, place):
    fleet.serve(only=1, dies=place)
    fleet.assist_missing()
    fleet.join_missing()
    if fleet.processes.wait(fleet.server) != 0:
        fleet.serve(only=1, resume=fleet.run)
    assert fleet.end() == 0
    # A kill between the request for keys and the agreed parameters uses the index up.
    assert check_one_round(fleet).index in (0, 1)


@pytest.mark.parametrize("place", [8, 20, 28])
def test_a_client_killed_at_a_commit_contributes_to_the_same_round(fleet, place):
    fleet.serve(only=1)
    fleet.assist_missing()
    fleet.join(1, dies=place)
    fleet.join_missing()
    if fleet.processes.wait_any(fleet.server, fleet.clients[1]) == fleet.clients[1]:
        fleet.join(1)
    assert fleet.end() == 0
    assert check_one_round(fleet).index == 0
