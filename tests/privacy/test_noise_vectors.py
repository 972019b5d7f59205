"""Skellam noise, compared with known answers from an independent implementation of the format."""

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dordis.crypto import kdf, prg
from dordis.privacy.skellam_noise import add_noise, build_table, noise
from tests.privacy.test_skellam_table import climbed

KNOWN = json.loads((Path(__file__).parents[1] / "vectors" / "noise.json").read_text())


def _sha256(array, dtype):
    return hashlib.sha256(array.astype(dtype).tobytes()).hexdigest()


@pytest.mark.parametrize("use", ["cells", "hats", "escapes"])
def test_streams_are_the_documented_ones(use):
    for known in KNOWN["streams"]:
        stream = prg.Stream.from_bytes(kdf.expand(bytes.fromhex(known["seed"]), b"dordis/v1/noise/" + use.encode(), 28))
        assert stream.key.hex() == known[use]["key"]
        assert stream.nonce.hex() == known[use]["nonce"]
        assert prg.read_keystream(stream, 0, 32).tobytes().hex() == known[use]["bytes_0_31"]
        assert prg.read_keystream(stream, 16 * 65536, 16).tobytes().hex() == known[use]["block_65536"]


@pytest.mark.parametrize("known", KNOWN["vectors"], ids=lambda known: known["variance"])
def test_table_is_the_documented_one(known):
    table = build_table(Fraction(known["variance"]))
    assert (table.log_width, table.largest, table.counts.size - 1) == (known["k"], known["X"], known["Hmax"])
    assert table.first_escape == known["first_escape_cell"]
    assert table.digest.hex() == known["table_sha256"]
    assert _sha256(table.pmf[:, ::-1], "<u8") == known["pmf_sha256"]
    nodes = climbed(table.stairs)
    nodes[table.first_escape :] = 0
    assert _sha256(nodes << table.log_width, "<i4") == known["cells_sha256"]
    assert _sha256(table.residual[:, ::-1], "<u8") == known["residual_sha256"]


@pytest.mark.parametrize("known", KNOWN["vectors"], ids=lambda known: known["variance"])
def test_inversion_finds_the_documented_samples(known):
    table = build_table(Fraction(known["variance"]))
    sums = [(int(high) << 64) | int(low) for high, low in table.residual]
    for u, sample in known["inversion"]:
        assert next(i for i, total in enumerate(sums) if total > int(u, 16)) - table.largest == sample


@pytest.mark.parametrize("known", KNOWN["vectors"], ids=lambda known: known["variance"])
def test_samples_are_the_documented_ones(known):
    variance = Fraction(known["variance"])
    for answer in known["samples"]:
        seed = bytes.fromhex(answer["seed"])
        samples = noise(seed, variance, 300_000)
        assert samples[:200].tolist() == answer["first_200"]
        assert samples[65_530:65_545].tolist() == answer["from_65530_to_65545"][:15]
        assert _sha256(samples, "<i8") == answer["sha256_first_300000"]


@pytest.mark.parametrize("known", KNOWN["vectors"], ids=lambda known: known["variance"])
def test_any_slice_is_the_same_part_of_the_whole(known):
    variance = Fraction(known["variance"])
    seed = bytes.fromhex(known["samples"][0]["seed"])
    whole = noise(seed, variance, 1_200_000)
    for first, count in [(0, 1), (7, 3), (65_535, 2), (65_530, 70_000), (131_071, 200_001), (1_048_575, 100_000)]:
        part = np.zeros(count, np.uint32)
        add_noise(part, seed, variance, first=first, threads=2)
        assert np.array_equal(part.view(np.int32), whole[first : first + count])
        add_noise(part, seed, variance, first=first, subtract=True)
        assert not part.any()
