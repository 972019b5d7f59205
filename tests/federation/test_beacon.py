"""Beacons: published values are read at their place, and a round's beacon is compared with one's own reading."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis.errors import InputError, ProtocolError
from dordis.federation.beacon import FileBeacon, SeedBeacon, check_beacon
from tests.federation.cohorts import a_round

VALUES = [hashlib.sha256(b"%d" % i).digest() for i in range(5)]
LINES = [value.hex().encode() + b"\n" for value in VALUES]


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
    for text in (b"", LINES[0][:1], LINES[0][:-1]):
        path.write_bytes(b"".join(LINES) + text)
        with pytest.raises(InputError, match="not published yet"):
            beacon.value(5)
        with pytest.raises(InputError, match="not published yet"):
            beacon.value(6)
    path.write_bytes(b"".join(LINES) + LINES[0])
    assert beacon.value(5) == VALUES[0]


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        LINES[2][1:],
        b"0" + LINES[2],
        LINES[2][:-1] + b"\r\n",
        b"x" * 64 + b"\n",
        LINES[2].upper(),
        b" " + LINES[2][1:],
    ],
    ids=["empty", "short", "long", "crlf", "no hex", "upper case", "space"],
)
def test_a_malformed_line_gives_no_value_and_none_after_it_a_wrong_one(path, line):
    path.write_bytes(b"".join([*LINES[:2], line, *LINES[3:], *LINES]))
    beacon = FileBeacon(path)
    assert [beacon.value(0), beacon.value(1)] == VALUES[:2]
    with pytest.raises(InputError, match="line 3"):
        beacon.value(2)
    if len(line) != len(LINES[2]):
        with pytest.raises(InputError, match="line 4"):
            beacon.value(3)


def test_the_end_of_a_longer_line_is_not_a_line(path):
    path.write_bytes(b"0" * 65 + LINES[1] + LINES[2])
    with pytest.raises(InputError, match="line 2"):
        FileBeacon(path).value(1)
    assert FileBeacon(path).value(2) == VALUES[2]


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
