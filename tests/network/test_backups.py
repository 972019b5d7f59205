"""Backup and restore on the real commands, as docs/operations.md says: what goes on, and what is refused."""

import shutil
import signal

import pytest

from dordis.owner.directory import ClientDirectory
from tests.network.deployed_commands import DeployedCommands
from tests.network.deployed_run import DeployedRun

pytestmark = [pytest.mark.network, pytest.mark.slow]

CLIENTS = 4


@pytest.fixture
def fleet(processes, tmp_path):
    """A run of three rounds, whose server waits before each round until it is restarted."""
    keys = ["federation.rounds=3", "app.options.dim=100000", "deployment.wait=600", "deployment.deadlines.grace=600"]
    keys.append("federation.tries=1")
    made = DeployedCommands(processes, tmp_path, CLIENTS, [*keys, f"app.options.gate={tmp_path / 'gate'}"])
    yield made
    made.stop()


def run_first_round(fleet: DeployedRun) -> None:
    """Start server and clients, and wait until round 1 is over and round 2 has not begun."""
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    fleet.join_missing()
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()


def end_run(fleet, processes):
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    fleet.clients.clear()


def restore_runs(fleet):
    """Put the backup in the place of all runs, as after a disk failure."""
    shutil.rmtree(fleet.folder / "runs")
    shutil.copytree(fleet.folder / "backup", fleet.folder / "runs")


def test_a_server_goes_on_from_a_backup_of_the_last_round_and_clients_refuse_an_older_one(fleet, processes):
    run_first_round(fleet)
    shutil.copytree(fleet.folder / "runs", fleet.folder / "backup", ignore=shutil.ignore_patterns("server.db*"))
    processes.kill(fleet.server)
    restore_runs(fleet)
    fleet.resume()
    end_run(fleet, processes)
    assert [record.index for record in fleet.stored().rounds] == [0, 1, 2]
    fleet.check_sums()
    assert fleet.check_ledger().reserved == 0
    fleet.check_disclosed_once()

    restore_runs(fleet)  # two rounds older than what clients have seen
    assert len(fleet.stored().rounds) == 1
    fleet.resume()
    fleet.join_missing()
    for u, pid in fleet.clients.items():
        assert processes.wait(pid) == 2
        assert "which it showed before, is missing" in fleet.client_log(u)
    fleet.clients.clear()
    fleet.signal(signal.SIGTERM, fleet.server)
    assert processes.wait(fleet.server) == 0
    assert len(fleet.stored().rounds) == 1

    fleet.serve("--succeed", fleet.run)  # its ledger lacks two rounds, which owners have counted
    fleet.join_missing()
    assert processes.wait(fleet.server) == 2
    assert f"{CLIENTS} clients have spent their owner's budget: end the run here" in fleet.log()


def test_a_client_with_an_old_state_leaves_and_goes_on_with_its_newest_one(fleet, processes):
    """The state from before round 1 has forgotten a participation, which the server's receipt shows."""
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    fleet.join_missing()
    waiting.read_text()
    fleet.wait_for_client(1, "connected as client 1")
    state, newest = fleet.folder / "c1.state", fleet.folder / "newest.state"
    shutil.copytree(state, fleet.folder / "old.state")
    go.write_text("on")
    waiting.read_text()
    assert ClientDirectory(state).participation().count() == 1
    processes.kill(fleet.clients.pop(1))
    shutil.move(state, newest)
    shutil.copytree(fleet.folder / "old.state", state)
    fleet.join(1)
    assert processes.wait(fleet.clients.pop(1)) == 2
    assert "the sum of round index 0 has the input of this client" in fleet.client_log(1)
    shutil.rmtree(state)
    shutil.move(newest, state)
    fleet.join(1)
    fleet.wait_for_client(1, "connected as client 1", count=3)
    go.write_text("on")
    waiting.read_text()
    go.write_text("on")
    end_run(fleet, processes)
    fleet.check_sums()
    fleet.check_disclosed_once()
    counts = [ClientDirectory(fleet.folder / f"c{u}.state").participation().count() for u in range(1, CLIENTS + 1)]
    assert counts == [3, 3, 3, 3]


def test_budgets_go_on_under_a_new_authority(processes, tmp_path):
    """Clients bring their state, with what they have spent, to a federation with new keys for everybody."""
    keys = ["federation.rounds=1", "federation.tries=1", "deployment.wait=600"]
    fleets = []
    for name in ("federation", "federation-2"):
        (tmp_path / name).mkdir()
        fleets.append(DeployedCommands(processes, tmp_path / name, CLIENTS, keys))
    old, new = fleets
    old.serve()
    old.join_missing()
    end_run(old, processes)
    for u in range(1, CLIENTS + 1):
        shutil.move(old.folder / f"c{u}.state", new.folder / f"c{u}.state")
    new.serve()
    new.join_missing()
    assert processes.wait(new.server) == 2
    assert f"{CLIENTS} clients have spent their owner's budget" in new.log()
    processes.kill(*new.clients.values())
    new.resume()
    for u in range(1, CLIENTS + 1):
        new.join(u, "--budget", "20")
    end_run(new, processes)
    counts = [ClientDirectory(new.folder / f"c{u}.state").participation().count() for u in range(1, CLIENTS + 1)]
    assert counts == [2] * CLIENTS
