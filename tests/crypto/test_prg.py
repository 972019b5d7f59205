"""Keystreams and masks agree with single AES blocks, whatever slice, sign, number of keys or threads."""

import hashlib
import json
import multiprocessing
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.crypto import prg
from dordis.errors import InputError
from tests.paused_processes import HANG
from tests.references import masks

KNOWN = json.loads((Path(__file__).parents[1] / "vectors" / "masks.json").read_text())
STREAM = prg.Stream(bytes(range(16)), bytes(range(100, 112)))

bits_of_a_ring = st.integers(1, 32)
few_threads = st.integers(1, 3)


def streams(count, tag=b""):
    """Return as many different streams."""
    digests = [hashlib.sha256(b"stream %d" % i + tag).digest() for i in range(count)]
    return [prg.Stream.from_bytes(digest[:28]) for digest in digests]


def plain(several):
    return [(stream.key, stream.nonce) for stream in several]


def make_mask(stream, count, bits, first=0):
    """Return `count` coordinates of a stream's mask, from coordinate `first` on."""
    acc = np.zeros(count, np.uint32)
    prg.add_masks(acc, [stream], [], bits, first=first)
    return acc


def uniform(bits, count):
    return np.random.default_rng([bits, count]).integers(0, 1 << bits, count, dtype=np.uint32)


def last_coordinate(bits):
    return (2**32 - 2) * 16 // -(-bits // 8)


# Known answers


@pytest.mark.parametrize("known", KNOWN["masks"], ids=lambda known: f"{known['bits']}@{known['first']}")
def test_masks_meet_the_known_answers(known):
    stream = prg.Stream(bytes.fromhex(known["key"]), bytes.fromhex(known["nonce"]))
    assert make_mask(stream, len(known["mask"]), known["bits"], known["first"]).tolist() == known["mask"]


@pytest.mark.parametrize("known", KNOWN["sums"], ids=lambda known: str(known["bits"]))
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_masks_meet_the_known_answers(known, threads):
    added, subtracted = (
        [prg.Stream.from_bytes(bytes.fromhex(s)) for s in known[sign]] for sign in ("added", "subtracted")
    )
    acc = np.zeros(known["count"], np.uint32)
    prg.add_masks(acc, added, subtracted, known["bits"], threads=threads)
    assert acc[-8:].tolist() == known["last_8"]
    assert hashlib.sha256(acc.astype("<u4").tobytes()).hexdigest() == known["sha256"]


# Keystream


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=28, max_size=28), st.integers(0, 2**36 - 500), st.integers(0, 200))
def test_keystream_is_the_blocks_of_the_cipher(derived, first, count):
    answer = masks.keystream((derived[:16], derived[16:]), first, count)
    assert prg.read_keystream(prg.Stream.from_bytes(derived), first, count).tobytes() == answer


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3 * prg.CALL), st.integers(0, 3 * prg.CALL))
def test_a_slice_of_the_keystream_is_the_part_of_the_whole(first, end):
    first, end = sorted((first, end))
    whole = prg.read_keystream(STREAM, 0, 3 * prg.CALL)
    assert np.array_equal(prg.read_keystream(STREAM, first, end - first), whole[first:end])


@pytest.mark.parametrize("first", [0, 5, prg.CALL - 3, prg.LONGEST - 1, prg.LONGEST])
def test_no_bytes_are_an_empty_keystream(first):
    assert prg.read_keystream(STREAM, first, 0).size == 0


def test_the_last_bytes_of_a_stream_can_be_read():
    answer = masks.keystream((STREAM.key, STREAM.nonce), prg.LONGEST - 20, 20)
    assert prg.read_keystream(STREAM, prg.LONGEST - 20, 20).tobytes() == answer


@pytest.mark.parametrize(("first", "count"), [(-1, 4), (0, -1), (prg.LONGEST, 1), (prg.LONGEST - 4, 5)])
def test_bytes_that_a_stream_does_not_have_are_refused(first, count):
    with pytest.raises(InputError, match="a stream has bytes 0 to"):
        prg.read_keystream(STREAM, first, count)


@pytest.mark.parametrize(("key", "nonce"), [(15, 12), (17, 12), (32, 12), (0, 12), (16, 11), (16, 13), (16, 16)])
def test_a_key_or_nonce_of_another_length_is_refused(key, nonce):
    with pytest.raises(InputError, match="a key of 16 bytes and a nonce of 12"):
        prg.Stream(bytes(key), bytes(nonce))


@pytest.mark.parametrize("length", [0, 27, 29, 32])
def test_a_stream_is_made_from_28_derived_bytes(length):
    with pytest.raises(InputError, match="28 derived bytes"):
        prg.Stream.from_bytes(bytes(length))


def test_a_stream_does_not_show_its_key():
    stream = prg.Stream(b"secret key bytes", b"secret nonce")
    for shown in (repr(stream), str(stream), f"{stream}", repr([stream]), repr({"stream": stream})):
        assert "secret" not in shown
        assert stream.key.hex() not in shown


# Masks


@settings(deadline=None, max_examples=150)
@given(
    bits_of_a_ring,
    st.integers(0, 70) | st.integers(0, 2**33),
    st.integers(0, 150),
    st.integers(0, 9),
    st.integers(0, 9),
    few_threads,
)
def test_masks_are_lanes_of_the_keystream(bits, first, count, added, subtracted, threads):
    plus, minus = streams(added, b"+"), streams(subtracted, b"-")
    acc = uniform(bits, count)
    answer = masks.add_masks(acc.tolist(), plain(plus), plain(minus), bits, first)
    prg.add_masks(acc, plus, minus, bits, first=first, threads=threads)
    assert acc.tolist() == answer


@settings(deadline=None, max_examples=60)
@given(bits_of_a_ring, st.integers(0, 300_000), st.integers(0, 300_000), few_threads)
def test_a_slice_of_a_mask_is_the_part_of_the_whole(bits, first, end, threads):
    first, end = sorted((first, end))
    whole = make_mask(STREAM, 300_000, bits)
    part = np.zeros(end - first, np.uint32)
    prg.add_masks(part, [STREAM], [], bits, first=first, threads=threads)
    assert np.array_equal(part, whole[first:end])


@pytest.mark.parametrize("bits", [8, 13, 20, 24, 32])
@pytest.mark.parametrize(("added", "subtracted"), [(1, 0), (3, 2)])
def test_masks_go_on_past_one_call_of_the_cipher(bits, added, subtracted):
    count = prg.CALL // -(-bits // 8) + 50
    plus, minus = streams(added, b"+"), streams(subtracted, b"-")
    acc = np.zeros(count, np.uint32)
    prg.add_masks(acc, plus, minus, bits, first=3)
    first = count - 100
    assert acc[first:].tolist() == masks.add_masks([0] * 100, plain(plus), plain(minus), bits, 3 + first)
    assert acc[:100].tolist() == masks.add_masks([0] * 100, plain(plus), plain(minus), bits, 3)


@pytest.mark.parametrize("bits", range(1, 33))
def test_the_last_coordinates_of_a_mask_can_be_used(bits):
    first = last_coordinate(bits) - 21
    assert make_mask(STREAM, 21, bits, first).tolist() == masks.mask((STREAM.key, STREAM.nonce), bits, first, 21)


@settings(deadline=None, max_examples=40)
@given(bits_of_a_ring, st.integers(2, 6), st.integers(1, 100), st.integers(0, 40))
def test_pairwise_masks_cancel_in_the_sum_over_all_clients(bits, clients, count, first):
    pairs = {(u, v): streams(1, b"%d %d" % (u, v))[0] for u in range(clients) for v in range(u + 1, clients)}
    updates = [uniform(bits, count + u)[:count] for u in range(clients)]
    total, masked = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
    for u, update in enumerate(updates):
        total += update
        upload = update.copy()
        added = [stream for (a, _), stream in pairs.items() if a == u]
        subtracted = [stream for (_, b), stream in pairs.items() if b == u]
        prg.add_masks(upload, added, subtracted, bits, first=first)
        masked += upload
    cut = np.uint32(2**bits - 1)
    assert np.array_equal(masked & cut, total & cut)


@pytest.mark.parametrize("bits", [7, 16, 20, 32])
@pytest.mark.parametrize("count", [0, 1, 15, 17, 33, 300_001])
def test_threads_do_not_change_the_result(bits, count):
    results = []
    for threads in (1, 2, 3, 7):
        acc = np.ones(count, np.uint32)
        prg.add_masks(acc, streams(3), streams(6, b"-"), bits, first=5, threads=threads)
        results.append(acc)
    assert all(np.array_equal(results[0], other) for other in results)


def sum_in_two_threads():
    acc = np.ones(1000, np.uint32)
    prg.add_masks(acc, streams(3), [], 20, threads=2)
    return acc.tolist()


def test_a_forked_process_has_threads_of_its_own():
    before = sum_in_two_threads()
    with multiprocessing.get_context("fork").Pool(1) as child:
        assert child.apply_async(sum_in_two_threads).get(timeout=HANG) == before


@pytest.mark.parametrize("failing", [0, 16, 32])
def test_a_failure_in_any_thread_is_raised_once_all_have_ended(failing):
    ended, failed = [], threading.Event()

    def work(first):
        if first == failing:
            failed.set()
            raise ValueError(f"part {first}")
        if failing == 0:  # the first part is done by the caller, which thus fails while the others are still at it
            assert failed.wait(HANG)
        ended.append(first)

    with pytest.raises(ValueError, match=f"part {failing}"):
        prg.run_in_threads(lambda first, end: partial(work, first), 0, 48, 3)
    assert sorted([*ended, failing]) == [0, 16, 32]


@pytest.mark.parametrize("bits", range(1, 33))
def test_the_sum_is_cut_even_if_there_is_nothing_to_add(bits):
    acc = np.full(40, 2**32 - 1, np.uint32)
    prg.add_masks(acc, [], [], bits, first=3)
    assert set(acc.tolist()) == {2**bits - 1}


@pytest.mark.parametrize("bits", [8, 20])
def test_nothing_is_written_beside_the_vector(bits):
    memory = np.full(60, 2**32 - 1, np.uint32)
    prg.add_masks(memory[10:-10], streams(5), [], bits, first=7)
    assert set(memory[:10].tolist()) == set(memory[-10:].tolist()) == {2**32 - 1}


# What is refused


@pytest.mark.parametrize("bits", [0, -1, 33, 64, 8.0, True, None])
def test_a_ring_of_other_than_1_to_32_bits_is_refused(bits):
    with pytest.raises(InputError, match="bits must be an integer from 1 to 32"):
        prg.add_masks(np.zeros(4, np.uint32), [STREAM], [], bits)


def read_only():
    acc = np.zeros(4, np.uint32)
    acc.flags.writeable = False
    return acc


@pytest.mark.parametrize(
    ("acc", "message"),
    [
        (np.zeros(4, np.int32), "uint32: got int32"),
        (np.zeros(4, np.uint64), "uint32: got uint64"),
        (np.zeros(4, np.float32), "uint32: got float32"),
        (np.zeros(4, ">u4"), "uint32: got >u4"),
        ([0, 0], "uint32: got list"),
        (np.zeros((2, 2), np.uint32), "one-dimensional"),
        (np.zeros((), np.uint32), "one-dimensional"),
        (np.zeros(8, np.uint32)[::2], "contiguous"),
        (np.zeros(8, np.uint32)[::-1], "contiguous"),
        (read_only(), "read-only"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_anything_but_a_writable_vector_of_uint32_is_refused(acc, message):
    with pytest.raises(InputError, match=message):
        prg.add_masks(acc, [STREAM], [], 20)


@pytest.mark.parametrize("bits", [1, 8, 9, 20, 24, 32])
@pytest.mark.parametrize("beyond", [0, 1, 2**40])
def test_coordinates_that_a_mask_does_not_have_are_refused(bits, beyond):
    with pytest.raises(InputError, match="has coordinates 0 to"):
        prg.add_masks(np.zeros(5, np.uint32), [STREAM], [], bits, first=last_coordinate(bits) - 4 + beyond)
    with pytest.raises(InputError, match="has coordinates 0 to"):
        prg.add_masks(np.zeros(5, np.uint32), [STREAM], [], bits, first=-1 - beyond)


def test_a_shuffle_skips_words_beyond_the_last_multiple():
    bound = 3 * 2**62
    assert prg.draw_below(bound, iter([2**64 - 1, bound, bound - 1])) == bound - 1
