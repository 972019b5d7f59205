"""Everyday events of an operator, on the real commands: stops, full disks, registries rewritten in place, reloads."""

import resource
import shutil
import signal

import pytest

from dordis.records.run_records import RECEIPTS
from dordis.records.server_status import RunQueue
from tests.network.deployed_commands import CONFIG, DeployedCommands, wait_until

pytestmark = [pytest.mark.network, pytest.mark.slow]

CLIENTS = 4
KEYS = ["federation.rounds=2", "app.options.dim=100000", "deployment.wait=600", "deployment.deadlines.grace=600"]

either_server = pytest.mark.parametrize(
    "server", [f"app.server=tests.network.process_roles:{name}" for name in ("Total", "EarlyTotal")]
)
"""A server that evaluates a round before clients are invited to the next one, and one that invites them earlier."""


@pytest.fixture
def deploy(processes, tmp_path):
    """Start a gated run of commands: the server waits before each round."""
    fleets = []

    def start(*keys):
        fleets.append(fleet := DeployedCommands(processes, tmp_path, CLIENTS, [*KEYS, *keys]))
        return fleet

    yield start
    for fleet in fleets:
        fleet.stop()


def gate_keys(folder):
    return [f"app.options.gate={folder / 'gate'}"]


def join_all(fleet, *arguments):
    for u in range(1, CLIENTS + 1):
        fleet.join(u, *arguments)


def check_run(fleet, rounds=2):
    """Check that the run is whole, and right."""
    assert [record.number for record in fleet.stored().rounds] == list(range(1, rounds + 1))
    fleet.check_sums()
    assert fleet.check_ledger().reserved == 0
    fleet.check_disclosed_once()


def check_no_traceback(log):
    assert not [word for word in ("Traceback", "Exception ignored", "Logging error") if word in log]


@either_server
def test_a_terminated_server_exits_with_0_and_clients_stay_until_the_run_is_over(deploy, processes, tmp_path, server):
    fleet = deploy(*gate_keys(tmp_path), server)
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    join_all(fleet)
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    fleet.signal(signal.SIGTERM, fleet.server)
    assert processes.wait(fleet.server) == 0
    assert "interrupted; resume with: dordis serve" in fleet.log()
    for u in fleet.clients:
        fleet.wait_for_client(u, "the server stopped before the run was over (its operator stopped it): reconnecting")
    assert all(map(processes.is_running, fleet.clients.values()))
    fleet.resume()  # the gate is open after a restart
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet)


@either_server
def test_a_terminated_server_waits_for_no_deadline_of_a_silent_client(deploy, processes, tmp_path, server):
    """A frozen client would hold up the round for longer than the test waits."""
    fleet = deploy(*gate_keys(tmp_path), server, "deployment.deadlines.stage=3600", "deployment.deadlines.least=3600")
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    join_all(fleet)
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    fleet.signal(signal.SIGSTOP, fleet.clients[1])
    go.write_text("on")
    wait_until(lambda: fleet.log().count("the round begins") == 2)
    fleet.signal(signal.SIGTERM, fleet.server)
    assert processes.wait(fleet.server) == 0
    fleet.signal(signal.SIGCONT, fleet.clients[1])
    fleet.resume()
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet)


def test_a_terminated_client_exits_with_0_and_joins_again(deploy, processes, tmp_path):
    fleet = deploy(*gate_keys(tmp_path))
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    join_all(fleet)
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    fleet.signal(signal.SIGTERM, fleet.clients[1])
    assert processes.wait(fleet.clients[1]) == 0
    assert "stopped: the client has left" in fleet.client_log(1)
    fleet.join(1)
    fleet.wait_for_client(1, "connected as client 1", count=2)
    go.write_text("on")
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet)


def test_a_failed_round_ends_the_server_with_one_line_and_clients_wait_for_it(deploy, processes, tmp_path):
    unready = tmp_path / "unready"
    unready.touch()
    fleet = deploy(f"app.options.unready={unready}", "federation.tries=1")
    fleet.serve()
    join_all(fleet)
    assert processes.wait(fleet.server) == 2
    assert "Traceback" not in fleet.log()
    assert "round 1 of 2 failed once (federation.tries)" in fleet.log()
    assert f"{CLIENTS} clients had no data for the round (is_ready): resume when their data is there" in fleet.log()
    for u in fleet.clients:
        fleet.wait_for_client(u, "the server stopped before the run was over (a round failed): reconnecting")
    fleet.serve("--resume", fleet.run, "--tries", "2")
    assert processes.wait(fleet.server) == 2
    assert "round 1 of 2 failed 2 times (federation.tries)" in fleet.log()
    unready.unlink()
    fleet.resume()
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet)


@pytest.mark.parametrize("size", [1 << 15, 1 << 18], ids=["first files", "sums"])
def test_a_full_disk_of_the_server_is_one_line_and_the_run_is_resumed(deploy, processes, size):
    """No file of the server grows beyond a size: a real failure of write, as on a full disk."""
    fleet = deploy()
    fleet.serve(file_size=size)
    join_all(fleet)
    assert processes.wait(fleet.server) == 2
    assert "Traceback" not in fleet.log()
    (line,) = [line for line in fleet.log().splitlines() if line.startswith("dordis:")]
    assert "cannot write" in line or "cannot open" in line
    if "resume with" in line:
        for u in fleet.clients:
            fleet.wait_for_client(u, "the server stopped before the run was over (it cannot write to its disk)")
        fleet.resume()
    else:
        shutil.rmtree(fleet.folder / "runs")
        fleet.serve()
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet)


def test_a_disk_that_is_full_after_a_receipt_was_written_changes_no_history(deploy, processes, tmp_path):
    """The server writes the receipt of round 2 and fails at its sums; clients have seen it when the run is resumed.

    They compare it with the next one in round 4.
    """
    fleet = deploy(*gate_keys(tmp_path), "federation.rounds=4")
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    join_all(fleet)
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    resource.prlimit(fleet.server, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    go.write_text("on")
    assert processes.wait(fleet.server) == 2
    assert sorted(path.name for path in (fleet.run / RECEIPTS).iterdir()) == ["000000.json", "000001.json"]
    fleet.resume()
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet, rounds=4)


def test_a_client_with_a_full_disk_declines_and_takes_part_when_there_is_room_again(deploy, processes, tmp_path):
    """Its journal has no room for the vector that it uploads."""
    fleet = deploy(*gate_keys(tmp_path))
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    fleet.join(1, file_size=1 << 17)
    for u in range(2, CLIENTS + 1):
        fleet.join(u)
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    assert fleet.client_log(1).count("invited, declined: the journal") == 1
    resource.prlimit(fleet.clients[1], resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    go.write_text("on")
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    assert [set(record.survivors) for record in fleet.stored().rounds] == [{CLIENTS - 1}, {CLIENTS}]
    assert fleet.client_log(1).count("invited, took part") == 1
    check_run(fleet)


def test_a_registry_that_is_missing_or_half_written_between_rounds_ends_nothing(deploy, processes, tmp_path):
    fleet = deploy(*gate_keys(tmp_path), "federation.rounds=3")
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    registry, whole = tmp_path / "registry.json", (tmp_path / "registry.json").read_bytes()
    fleet.serve()
    join_all(fleet)
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    registry.unlink()
    go.write_text("on")
    waiting.read_text()
    registry.write_bytes(whole[: len(whole) // 2])
    fleet.signal(signal.SIGKILL, fleet.clients.pop(1))
    wait_until(lambda: "client 1 is disconnected" in fleet.log())
    go.write_text("on")
    assert processes.wait(fleet.server) == 0
    assert "the registry cannot be read, and its version" in fleet.log()
    assert [len(record.clients) for record in fleet.stored().rounds] == [4, 4, 3]
    fleet.check_sums()
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * (CLIENTS - 1)


def test_a_hangup_reloads_deadlines_and_says_what_needs_a_new_run(deploy, processes, tmp_path):
    fleet = deploy(*gate_keys(tmp_path))
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    join_all(fleet)
    waiting.read_text()
    fleet.wait_for_client(1, "connected as client 1")
    fleet.write_config(CONFIG, "deployment.deadlines.stage=17", "privacy.epsilon=3", "federation.tries=7")
    fleet.signal(signal.SIGHUP, fleet.server, fleet.clients[1])
    wait_until(lambda: "reloaded deployment.deadlines" in fleet.log())
    wait_until(lambda: "have changed and need a new run: federation.tries, privacy.epsilon" in fleet.log())
    fleet.wait_for_client(1, "the certificate was read again")
    go.write_text("on")
    waiting.read_text()
    go.write_text("on")
    assert processes.wait(fleet.server) == 0
    check_run(fleet)


@pytest.mark.parametrize(("output", "code"), [("/dev/full", 2), ("closed pipe", 130)])
def test_output_that_nobody_takes_stops_the_server_with_one_line(deploy, processes, output, code):
    fleet = deploy()
    fleet.serve(wait=False, stdout=output)
    assert processes.wait(fleet.server) == code
    check_no_traceback(fleet.log())
    (line,) = [line for line in fleet.log().splitlines() if "resume with: dordis serve" in line]
    assert line.startswith("dordis: cannot write: No space left" if code == 2 else "interrupted; ")


def test_a_reader_that_leaves_during_the_run_stops_the_server_and_the_run_is_resumed(deploy, processes):
    """As in `dordis serve ... | head`: the server learns it at its next line, after round 1."""
    fleet = deploy()
    output = fleet.pipe("output")
    fleet.serve(wait=False, stdout=output)
    with output.open() as reader:
        while "listening at" not in reader.readline():
            pass
    join_all(fleet)
    assert processes.wait(fleet.server) == 130
    check_no_traceback(fleet.log())
    assert fleet.log().count("interrupted; resume with: dordis serve") == 1
    for u in fleet.clients:
        fleet.wait_for_client(u, "the server stopped before the run was over (its operator stopped it): reconnecting")
    fleet.resume()
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet)


@pytest.mark.parametrize(
    ("output", "reason"), [("/dev/full", "No space left on device"), ("closed pipe", "Broken pipe")]
)
def test_output_that_nobody_takes_stops_a_client_as_ctrl_c_does(deploy, processes, output, reason):
    """With --json a client prints its log lines."""
    fleet = deploy()
    fleet.serve()
    fleet.join(1, "--json", stdout=output)
    assert processes.wait(fleet.clients[1]) == 130
    check_no_traceback(fleet.client_log(1))
    assert fleet.client_log(1).count(f"cannot write to standard output: {reason}\n") == 1
    join_all(fleet)
    assert processes.wait(fleet.server) == 0
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
    check_run(fleet)


def test_the_configurations_of_a_folder_run_one_after_the_other_for_clients_that_follow(deploy, processes, tmp_path):
    fleet = deploy()
    fleet.write_config("queue/1-first.toml", "federation.rounds=1")
    fleet.write_config("queue/2-second.toml", "federation.rounds=2")
    fleet.serve("queue")
    for u in range(1, CLIENTS + 1):
        fleet.join(u, "--follow", "--budget", "20", config="queue")
    assert processes.wait(fleet.server) == 0
    assert "all 2 configurations of queue are done" in fleet.log()
    entries = RunQueue(tmp_path / "queue").entries()
    assert [entry.over for entry in entries.values()] == [True, True]
    assert len({entry.run for entry in entries.values()}) == 2
    check_run(fleet)
    for u, pid in fleet.clients.items():
        fleet.wait_for_client(u, "the run is over: waiting for the next run", count=2)
        assert processes.is_running(pid)
    fleet.signal(signal.SIGTERM, *fleet.clients.values())
    assert [processes.wait(pid) for pid in fleet.clients.values()] == [0] * CLIENTS
