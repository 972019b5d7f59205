"""Experiments: their files and configurations, the collection of records, and, as root, a small cluster."""

import os
import signal
import subprocess
import sys

import pytest

from dordis.config import reading
from dordis.config.schema import Config
from dordis.errors import InputError
from dordis.simulation.run import prepare
from reproduce.cluster import experiment
from reproduce.cluster.experiment import (
    AUTO,
    Workload,
    collect_records,
    run_experiment,
    run_name,
    wait_for_text,
    write_experiment,
)
from reproduce.cluster.links import plan_links
from reproduce.cluster.namespaces import Namespaces, find_obstacle
from reproduce.cluster.prediction import count_chunks

SMALL = Workload(clients=4, dim=20_000, chunks=(1, 2), rounds=2)


def simulate_run(root, name, chunks, rounds=2):
    """Simulate a run as the server of an experiment records one."""
    settings = {
        "name": name,
        "app": {
            "server": "reproduce.cluster.app:FixedServer",
            "client": "reproduce.cluster.app:FixedClient",
            "options": {"dim": 20_000},
        },
        "federation": {"clients": 6, "per_round": 6, "rounds": rounds},
        "performance": {"chunks": chunks},
        "privacy": {"projection": "off"},
        "simulation": {"dropout": {"kind": "rate", "rate": 0}},
    }
    config = reading.config_from_settings(settings)
    for _ in prepare(config).start(root, reading.config_to_toml(config)).rounds(lambda stage: None):
        pass


def test_the_files_of_an_experiment_are_those_that_server_and_clients_read(tmp_path):
    write_experiment(tmp_path, Workload(3, 20_000, (1, AUTO), repeats=2, dropout=0.4), plan_links(3))
    names = ["0-01", "0-auto", "1-01", "1-auto"]
    assert sorted(path.stem for path in (tmp_path / "configs").iterdir()) == names
    configs = [reading.read_config(path) for path in sorted((tmp_path / "configs").iterdir())]
    assert all(isinstance(config, Config) for config in configs)
    assert [config.performance.chunks for config in configs] == [1, "auto", 1, "auto"]
    assert {config.protocol.mode for config in configs} == {"semi-honest"}
    assert {config.privacy.projection for config in configs} == {"off"}  # all coordinates are sent
    assert all((tmp_path / f"{name}.key").exists() for name in ("server", "c1", "c2", "c3"))
    assert (tmp_path / "lost.json").read_text() == "[3]"


def test_records_are_collected_by_chunks_without_each_first_round(tmp_path):
    workload = Workload(6, 20_000, (1, 2), rounds=3, repeats=2)
    for repeat in range(2):
        for chunks in (1, 2):
            simulate_run(tmp_path, run_name(chunks, repeat), chunks, 3)
    records = collect_records(tmp_path, workload)
    assert {chunks: [count_chunks(record) for record in found] for chunks, found in records.items()} == {
        1: [1] * 4,
        2: [2] * 4,
    }
    assert {record.number for found in records.values() for record in found} == {2, 3}


def test_a_run_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match="0-01: the experiment did not finish"):
        collect_records(tmp_path, SMALL)


def test_a_process_that_ends_before_it_is_ready_is_reported_with_its_last_lines(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", "print('no port')"], stdout=output)
    with pytest.raises(InputError, match=r"(?s)failed.*no port"):
        wait_for_text(process, log, "listening")


def test_nothing_is_left_in_the_temporary_folder_if_namespaces_cannot_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("reproduce.cluster.namespaces.os.geteuid", lambda: 1000)
    with pytest.raises(InputError, match="need root"):
        run_experiment(SMALL, plan_links(4))
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_experiment_removes_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment.tempfile, "tempdir", str(tmp_path))

    def terminate(folder, workload, links):
        assert folder.is_dir()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(experiment, "write_experiment", terminate)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(SMALL, plan_links(4))
    assert list(tmp_path.iterdir()) == []


obstacle = find_obstacle()


@pytest.mark.slow
@pytest.mark.skipif(obstacle is not None, reason=f"namespaces cannot be made here: {obstacle}")
def test_a_small_cluster_runs_its_rounds_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment.tempfile, "tempdir", str(tmp_path))
    workload = Workload(clients=8, dim=20_000, chunks=(1, 2), dropout=0.125, processes=1)
    records = run_experiment(workload, plan_links(8, latency=0.001, slowness=2.0))
    assert {chunks: len(found) for chunks, found in records.items()} == {1: 1, 2: 1}
    for chunks, (record,) in records.items():
        assert record.survivors == (7,) * chunks  # client 8 is lost before it uploads
        assert record.dropped == {"refused": (8,)}
        assert record.dim == 20_000
    assert list(tmp_path.iterdir()) == []
    command = ["ip", "netns", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = Namespaces.with_tag(str(os.getpid()))
    assert names.server not in listed
    assert names.clients not in listed
