"""Beacons: published values are read from their line, and clients compare a round's beacon with their own reading."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis.errors import InputError, ProtocolError
from dordis.selection import beacon as module
from dordis.selection.beacon import FileBeacon, SeedBeacon, check_beacon
from tests.runs.cohorts import a_round

VALUES = [hashlib.sha256(b"%d" % i).digest() for i in range(5)]
TIMES = [datetime(2026, 1, 31, 12, minute, tzinfo=UTC) for minute in range(10)]
LINES = [b"2026-01-31T12:%02d:00Z %b\n" % (i, value.hex().encode()) for i, value in enumerate(VALUES)]
NEXT = b"2026-01-31T12:05:00Z %b\n" % VALUES[0].hex().encode()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "published.txt"
    path.write_bytes(b"".join(LINES))
    return path


def test_line_i_is_the_value_of_round_i(path):
    assert [FileBeacon(path).value(i) for i in range(5)] == VALUES


@pytest.mark.parametrize("index", [5, 6, 1000, 2**64 - 1])
def test_a_round_that_is_not_published_yet_has_no_value(path, index):
    with pytest.raises(InputError, match=f"round {index} is not published yet"):
        FileBeacon(path).value(index)


def test_a_line_counts_once_it_is_complete_and_is_seen_without_reopening(path):
    beacon = FileBeacon(path)
    for text in (b"", NEXT[:1], NEXT[:-1]):
        path.write_bytes(b"".join(LINES) + text)
        with pytest.raises(InputError, match="not published yet"):
            beacon.value(5)
        with pytest.raises(InputError, match="not published yet"):
            beacon.value(6)
    path.write_bytes(b"".join(LINES) + NEXT)
    assert beacon.value(5) == VALUES[0]


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        LINES[2][1:],
        b"0" + LINES[2],
        LINES[2][:-1] + b"\r\n",
        LINES[2][:21] + b"x" * 64 + b"\n",
        LINES[2][:21] + LINES[2][21:].upper(),
        b" " + LINES[2][1:],
        LINES[2].replace(b"T12", b"T25"),
        LINES[2].replace(b"Z ", b"  "),
        LINES[1],
        LINES[0],
    ],
    ids=["empty", "short", "long", "crlf", "no hex", "upper case", "space", "hour", "zone", "same time", "earlier"],
)
def test_a_malformed_line_gives_no_value_and_none_after_it_a_wrong_one(path, line):
    path.write_bytes(b"".join([*LINES[:2], line, *LINES[3:], *LINES]))
    beacon = FileBeacon(path)
    assert [beacon.value(0), beacon.value(1)] == VALUES[:2]
    with pytest.raises(InputError, match="line 3"):
        beacon.value(2)
    if len(line) != len(LINES[2]):
        with pytest.raises(InputError, match=r"line [34] "):
            beacon.value(3)


def test_the_end_of_a_longer_line_is_not_a_line(path):
    path.write_bytes(b"0" * 86 + LINES[1] + LINES[2])
    with pytest.raises(InputError, match="line 1"):  # every line is compared with the one before
        FileBeacon(path).value(1)
    assert FileBeacon(path).value(2) == VALUES[2]


def test_a_run_begins_at_the_line_that_its_manifest_names(path):
    beacon = FileBeacon(path, first=3)
    assert [beacon.value(0), beacon.value(1)] == VALUES[3:]
    assert (beacon.is_published(1), beacon.is_published(2)) == (True, False)
    with pytest.raises(InputError, match="round 2 is not published yet"):
        beacon.value(2)


def test_a_run_that_begins_now_begins_at_a_line_that_is_neither_published_nor_next(path):
    first = FileBeacon(path).next_line()
    assert first == 6
    assert not replace(FileBeacon(path), first=first).is_published(0)


def test_a_line_that_is_not_later_than_the_manifest_is_refused(path, monkeypatch):
    for minute, first in ((2, 2), (3, 2), (9, 4)):
        early = FileBeacon(path, first=first, after=TIMES[minute])
        with pytest.raises(
            ProtocolError, match=f"line {first + 1} of the beacon has the time .* not later than the run"
        ):
            early.value(0)
    late = FileBeacon(path, first=2, after=TIMES[1])
    assert late.value(0) == VALUES[2]
    monkeypatch.setattr(module, "check_later", lambda *_: None)
    assert FileBeacon(path, first=2, after=TIMES[9]).value(0) == VALUES[2]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the beacon .*none\.txt"):
        FileBeacon(tmp_path / "none.txt").value(0)


@pytest.mark.parametrize("index", [-1, 2**64])
def test_an_index_that_no_round_has_is_refused(path, index):
    for beacon in (FileBeacon(path), SeedBeacon(bytes(32))):
        with pytest.raises(InputError, match="index"):
            beacon.value(index)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_seed_gives_every_round_its_own_value(seed, i, j):
    beacon = SeedBeacon(seed)
    assert len(beacon.value(i)) == 32
    assert (beacon.value(i) == SeedBeacon(seed).value(j)) == (i == j)
    assert beacon.value(i) != SeedBeacon(bytes(31) + b"\1" if seed == bytes(32) else bytes(32)).value(i)


def test_sources_can_be_told_apart_in_a_manifest_and_do_not_tell_the_seed(path):
    sources = [
        FileBeacon(path).source,
        FileBeacon(path, publisher="drand quicknet, rounds 1000 to 1004").source,
        SeedBeacon(bytes(32)).source,
        SeedBeacon(bytes([1] * 32)).source,
    ]
    assert len(set(sources)) == 4
    assert "drand" in sources[1]
    assert bytes([1] * 32).hex() not in sources[3] + repr(SeedBeacon(bytes([1] * 32)))
    assert str(path.parent) not in sources[0]


def test_a_round_must_carry_the_value_that_i_read_myself(path):
    beacon = FileBeacon(path)
    good = a_round([1, 2], index=3, beacon=VALUES[3])
    assert good.index == 3
    check_beacon(good, beacon)
    for other in (VALUES[2], b"", VALUES[3][:-1], VALUES[3] + b"\0"):
        with pytest.raises(ProtocolError, match="published"):
            check_beacon(a_round([1, 2], index=3, beacon=other), beacon)
    with pytest.raises(InputError, match="not published yet"):
        check_beacon(a_round([1, 2], index=5, beacon=VALUES[3]), beacon)
