"""Files of a server: the queue of runs, by the names of configurations, and the complaints of assisted runs."""

import pytest

from dordis.errors import InputError
from dordis.protocols.assisted.disputes import Complaints
from dordis.records.server_status import (
    CONNECTED,
    QUEUE,
    ConnectedClients,
    QueuedRun,
    RunQueue,
    read_complaints,
    read_connected,
    write_connected,
)
from dordis.rounds.arrivals import ArrivalStore


def test_configurations_run_by_name_and_one_that_has_begun_is_resumed(tmp_path):
    for name in ("2.toml", "1.toml", "notes.txt"):
        (tmp_path / name).touch()
    queue = RunQueue(tmp_path)
    assert queue.next_run() == ("1.toml", None)
    queue.begin("1.toml", tmp_path / "run")
    assert RunQueue(tmp_path).next_run() == ("1.toml", tmp_path / "run")
    queue.finish("1.toml")
    assert queue.next_run() == ("2.toml", None)
    (tmp_path / "0.toml").touch()  # added later, and still first
    assert queue.next_run() == ("0.toml", None)
    for name in ("0.toml", "2.toml"):
        queue.begin(name, tmp_path / name)
        queue.finish(name)
    assert queue.next_run() is None
    assert queue.entries()["1.toml"] == QueuedRun(str(tmp_path / "run"), over=True)


def test_a_folder_without_configurations_and_the_directory_of_a_run_are_no_queues(tmp_path):
    with pytest.raises(InputError, match="there is no configuration"):
        RunQueue(tmp_path)
    (tmp_path / "config.toml").touch()
    (tmp_path / QUEUE).write_text("[]")
    with pytest.raises(InputError, match="is not what dordis wrote"):
        RunQueue(tmp_path)
    (tmp_path / "manifest.json").touch()
    with pytest.raises(InputError, match="give it with --resume"):
        RunQueue(tmp_path)


def test_complaints_are_read_from_the_directory_of_a_run(tmp_path):
    assert read_complaints(tmp_path) == Complaints()
    said = Complaints(frozenset({(1, 8), (3, 8)}), frozenset({2}), frozenset({5}))
    ArrivalStore(tmp_path / "arrivals.bin").keep_standing(said)
    assert read_complaints(tmp_path) == said
    assert ArrivalStore(tmp_path / "arrivals.bin").standing(Complaints) == said
    (tmp_path / "complaints.json").write_bytes(b'{"edges":[[1,')
    with pytest.raises(InputError, match=r"complaints\.json is not what dordis wrote"):
        read_complaints(tmp_path)


def test_connected_clients_are_written_only_if_they_changed(tmp_path):
    write_connected(tmp_path, ConnectedClients((1, 2)))
    first = (tmp_path / CONNECTED).stat().st_ino
    write_connected(tmp_path, ConnectedClients((1, 2)))
    assert (tmp_path / CONNECTED).stat().st_ino == first
    write_connected(tmp_path, ConnectedClients((1,), {2: {"Train": 1}}))
    assert read_connected(tmp_path) == ConnectedClients((1,), {2: {"Train": 1}})
