"""Rounds over Ray, on two nodes: bit for bit the sums of the local engine, and a killed process is dropouts."""

import hashlib
import itertools
import os
import select
import signal
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dordis.config.schema import Config, Simulation
from dordis.errors import InputError, MissingExtra, UnusableUpdate
from dordis.library import run
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.setting import Setting
from dordis.protocols.secagg import SECAGG
from dordis.records.manifest import describe_fidelity
from dordis.rounds.app import FixedClient
from dordis.rounds.watch import StageBegan
from dordis.runs.plan import RoundPlan
from dordis.simulation.run import home_of_updates, prepare, single_round

CLIENTS, DIM, CHUNKS = 12, 3 * 8192, 3


def stream(name):
    """Return randomness that follows from a name."""
    drawn = itertools.count()
    return lambda size: hashlib.shake_256(b"%s/%d" % (str(name).encode(), next(drawn))).digest(size)


def update(u):
    return 0.05 * np.sin(np.arange(DIM) + u) / DIM**0.5


class Script:
    """Losses as they are told, by the index of the round."""

    def __init__(self, leaving):
        self._leaving = leaving

    def available(self, index, clients):
        return frozenset(clients)

    def leaving(self, index, clients):
        return self._leaving


def home_on(engine, leaving, workers=1):
    """Return clients with randomness of their own, in one process or in several."""
    setting = Setting(ParticipationSchedule(CLIENTS, CLIENTS, 2), dim=DIM, tolerance=5, threshold=7)
    design = RoundPlan(XNoise(), setting, 6.0)
    home = home_of_updates(design, SECAGG, update, stream("server"), Script(leaving))
    return replace(home, settings=Simulation(engine=engine, workers=workers), entropy_of=stream)


def settings_of(**simulation):
    config = Config(output="", simulation=Simulation(engine="ray", **simulation))
    return msgspec.structs.replace(config, name="over-ray")


def test_ideal_fidelity_has_nothing_for_ray_to_compute():
    with pytest.raises(InputError, match=r"set simulation\.engine to 'local'"):
        prepare(settings_of(fidelity="ideal"))


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("dordis.simulation.run.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="extra 'ray'"):
        prepare(settings_of())


@pytest.fixture(scope="module")
def cluster():
    """Start two nodes of Ray's in processes of this machine."""
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    from ray.cluster_utils import Cluster

    of_a_node = {"num_cpus": 1, "object_store_memory": 200 << 20, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=of_a_node)
    nodes.add_node(**{name: value for name, value in of_a_node.items() if name != "include_dashboard"})
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()
    nodes.shutdown()


over_ray = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def marked(test):
    for mark in over_ray:
        test = mark(test)
    return test


def check_the_same(finished, expected):
    """The two engines came to the same bits."""
    for ours, theirs in zip(finished.result.outputs, expected.result.outputs, strict=True):
        assert ours.survivors == theirs.survivors
        assert np.array_equal(ours.total, theirs.total)
        assert (ours.left, ours.charged, ours.stayed) == (theirs.left, theirs.charged, theirs.stayed)


class Killing:
    """Kill the process that some clients live in when a stage of a round begins; know when it is gone."""

    rounds = None

    def __init__(self, ray, at):
        self._ray, self._at = ray, at

    def __call__(self, event):
        if isinstance(event, StageBegan) and event.stage in self._at:
            self.kill(self._at.pop(event.stage))

    def kill(self, place):
        handle = self.rounds._workers._handles[place]
        pid = self._ray.get(handle.__ray_call__.remote(lambda worker: os.getpid()))
        watched = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([watched], [], [])
        os.close(watched)


@marked
@pytest.mark.parametrize(  # with several chunks it is a matter of time which of them a client leaves after its upload
    ("leaving", "chunks"), [({1: "ShareKeys", 2: "CollectInput"}, CHUNKS), ({1: "ShareKeys", 3: "Unmask"}, 1)]
)
def test_sums_are_those_of_the_local_engine(cluster, leaving, chunks):
    opened = []

    def rounds(run, selection):
        opened.append(home_on("ray", leaving, workers=2).open(run, selection, {}))
        return opened[0]

    finished = single_round(home_on("ray", leaving), chunks, rounds=rounds)
    expected = single_round(home_on("local", leaving), chunks)
    check_the_same(finished, expected)
    assert finished.record.dropped == expected.record.dropped
    assert (finished.result.up, finished.result.down) == (expected.result.up, expected.result.down)
    handles = opened[0]._workers._handles
    assert len({cluster.get(handle.__ray_call__.remote(node_of)) for handle in handles}) == 2


def node_of(worker):
    """Return where a process of Ray's is."""
    import ray

    return ray.get_runtime_context().get_node_id()


@marked
def test_a_killed_process_is_dropouts(cluster, monkeypatch):
    """One dies when its clients, 6 and 12, have uploaded, before the sum is merged; that of 4 and 10 at unmasking."""
    from dordis.integrations.ray import RayAccumulator

    leaving = {1: "ShareKeys"}
    killing = Killing(cluster, {"Unmask": 3})
    closed = RayAccumulator.close

    def killed_before_the_merge(self):
        if not killing.rounds._workers.gone:
            killing.kill(5)
        return closed(self)

    def rounds(run, selection):
        killing.rounds = home_on("ray", leaving, workers=6).open(run, selection, {})
        return killing.rounds

    monkeypatch.setattr(RayAccumulator, "close", killed_before_the_merge)
    finished = single_round(home_on("ray", leaving), rounds=rounds, watch=killing)
    lost = {6: "CollectInput", 12: "CollectInput", 4: "Unmask", 10: "Unmask"}
    check_the_same(finished, single_round(home_on("local", leaving | lost)))
    everyone = list(range(1, CLIENTS + 1))
    assert killing.rounds.available(1) == everyone  # they are invited, and do not answer
    killing.rounds._chooses = True  # as if the server could choose among those who are there
    assert killing.rounds.available(1) == [u for u in everyone if u not in lost]


@marked
def test_a_mistake_of_an_application_is_raised_as_it_was(cluster):
    home = replace(home_on("ray", {}), clients=lambda u: FixedClient(np.zeros(DIM + (u == 5))))
    with pytest.raises(UnusableUpdate, match="update of client 5 in round 1 is not usable"):
        single_round(home)


@marked
def test_a_configured_run_goes_through(cluster, tmp_path):
    given = {
        "output": str(tmp_path),
        "app": {"server": "tests.simulation.toys:Server", "client": "tests.simulation.toys:Client"},
        "federation": {"clients": 8, "per_round": 6, "rounds": 2},
        "simulation": {"engine": "ray", "workers": 2, "dropout": {"kind": "rate", "rate": 0.2}},
    }
    result = run(given)
    assert (result.stopped, len(result.history)) == ("rounds", 2)
    assert 0 < result.epsilon <= 6
    assert result.run_as.startswith("simulated in 2 processes of Ray on 2 nodes, which had everybody's data")
    assert "Simulated in 2 processes of Ray on 2 nodes" in result.report().read_text()


def test_a_dry_run_says_that_ray_will_be_used():
    assert "in processes of Ray" in describe_fidelity("full", settings_of().simulation.where)
