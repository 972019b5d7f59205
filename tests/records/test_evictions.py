"""Evicted clients stay evicted after any interruption of the process."""

import pytest

from dordis.errors import InputError
from dordis.protocols.assisted.disputes import Complaints
from dordis.records.evictions import Evictions, read_complaints
from dordis.rounds.arrivals import ArrivalStore


def test_evictions_are_on_disk_and_nobody_is_evicted_twice(tmp_path):
    path = tmp_path / "evictions.jsonl"
    evictions = Evictions(path)
    assert evictions.add(3, {7, 5}, "they lied") == (5, 7)
    assert evictions.add(4, {7}, "again") == ()
    assert evictions.add(9, {7, 1}, "again") == (1,)
    assert Evictions(path).clients == evictions.clients == {1, 5, 7}
    assert [(line.index, line.clients) for line in Evictions(path).lines] == [(3, (5, 7)), (9, (1,))]


def test_evictions_are_inherited_with_the_run_that_they_were_from(tmp_path):
    first, second, third = (Evictions(tmp_path / name) for name in ("1", "2", "3"))
    first.add(3, {7, 5}, "they lied")
    second.inherit(first.lines, "aa")
    second.add(3, {1, 5}, "again")
    third.inherit(second.lines, "bb")
    assert (second.after(3), third.after(3)) == ((1,), ())
    assert [(line.clients, line.run) for line in Evictions(tmp_path / "3").lines] == [((5, 7), "aa"), ((1,), "bb")]
    assert b"run" not in (tmp_path / "1").read_bytes()


def test_without_an_eviction_there_is_no_file(tmp_path):
    path = tmp_path / "evictions.jsonl"
    assert Evictions(path).add(0, (), "nobody") == ()
    assert not path.exists()
    assert Evictions().add(0, {1}, "in memory") == (1,)


def test_a_line_that_was_cut_is_left_out_and_another_file_is_refused(tmp_path):
    path = tmp_path / "evictions.jsonl"
    Evictions(path).add(3, {7}, "it lied")
    path.write_bytes(path.read_bytes() + b'{"index":4,"cli')
    assert Evictions(path).clients == {7}
    path.write_bytes(b"nothing of the kind\n")
    with pytest.raises(InputError, match="not what dordis wrote"):
        Evictions(path)


def test_complaints_are_read_from_the_directory_of_a_run(tmp_path):
    assert read_complaints(tmp_path) == Complaints()
    said = Complaints(frozenset({(1, 8), (3, 8)}), frozenset({2}), frozenset({5}))
    ArrivalStore(tmp_path / "arrivals.bin").keep_standing(said)
    assert read_complaints(tmp_path) == said
    assert ArrivalStore(tmp_path / "arrivals.bin").standing(Complaints) == said
    (tmp_path / "complaints.json").write_bytes(b'{"edges":[[1,')
    with pytest.raises(InputError, match=r"complaints\.json is not what dordis wrote"):
        read_complaints(tmp_path)
