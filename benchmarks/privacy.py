"""The cost of encoding, decoding and planning a run."""

import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.figure import Figure
from benchmarks.timing import best, repetitions
from dordis.privacy import scaling
from dordis.privacy.accounting import CAP
from dordis.privacy.advice import forecast_dropout
from dordis.privacy.encoding import SEED_BYTES, Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from reproduce.epsilon import PAPER_BUDGET, TASKS

SIZES = {"1M": (1_000_000, 0, 200), "11M": (11_200_000, 86_016, 40), "11M_unfolded": (11_200_000, 0, 20)}
"""Coordinates, into how many they are folded, and how often each is measured."""
SCALE, CLIP, BITS = 1000.0, 1.0, 20

_ENCODE = "float32 coordinates: clip, rotate, scale, round; no noise"
_DECODE = "to float64: centre, scale, rotate back"
_FOLDED = "folded into 86,016, as with 100 clients a round and (6, 10^-5)"

FIGURES = {
    "encode_1M_ms": Figure("ms", at_most=40, note=f"10^6 {_ENCODE}"),
    "encode_11M_ms": Figure("ms", at_most=60, note=f"1.1 10^7, {_FOLDED}; otherwise the same"),
    "encode_11M_unfolded_ms": Figure("ms", at_most=600, note=f"1.1 10^7 {_ENCODE}"),
    "decode_1M_ms": Figure("ms", at_most=40, note=f"10^6, {_DECODE}"),
    "decode_11M_ms": Figure("ms", at_most=60, note=f"1.1 10^7, {_FOLDED}; otherwise the same"),
    "decode_11M_unfolded_ms": Figure("ms", at_most=600, note=f"1.1 10^7, {_DECODE}"),
    "plan_s": Figure("s", at_most=2, note="noise, scale and bits of a run, and its forecast; the slowest of six"),
}


def run(quick: bool) -> dict[str, float]:
    """Measure everything, in CPU time of one thread."""
    families: tuple[Callable[[bool], dict[str, float]], ...] = (_encoding, _planning)
    values: dict[str, float] = {}
    for family in families:
        values |= family(quick)
    return values


def _encoding(quick: bool) -> dict[str, float]:
    encode_ms, decode_ms = {}, {}
    for name, (dim, buckets, full) in SIZES.items():
        count = repetitions(full, quick)
        grid = Grid(dim, scaling.block_size(buckets or dim), SCALE, BITS, buckets)
        mechanism = DSkellam(grid, CLIP, scaling.sensitivity(SCALE, CLIP, grid.padded, bool(buckets)).squared)
        update = np.random.Generator(np.random.PCG64()).standard_normal(dim, np.float32)
        seed = secrets.token_bytes(SEED_BYTES)
        vector = mechanism.encode(update, seed)
        encode_ms[f"encode_{name}_ms"] = best(lambda m=mechanism, x=update, s=seed: m.encode(x, s), count) * 1e3
        decode_ms[f"decode_{name}_ms"] = best(lambda m=mechanism, v=vector, s=seed: m.decode(v, 1, s), count) * 1e3
    return encode_ms | decode_ms


def _planning(quick: bool) -> dict[str, float]:
    """Plan the paper's tasks its way, and ours: over the participation cap, with bits that are chosen."""
    paper = [task.setting() for task in TASKS]
    ours = [
        Setting(replace(each.participation, accounting=CAP), dim=each.dim, clip=each.clip, delta=each.delta)
        for each in paper
    ]
    count = 1 if quick else 5
    return {
        "plan_s": max(
            best(lambda s=setting: forecast_dropout(plan(s, PAPER_BUDGET)), count) for setting in paper + ours
        )
    }
