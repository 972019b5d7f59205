"""How much of a round would be saved if the server changed the model after every chunk, not once after the last.

Chunks are already decoded as they arrive.  Only the step, which adds the mean update to the model, waits for the last
chunk.  If it were done chunk by chunk, the steps of all chunks but the last could overlap with transfers.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import thread_time

import numpy as np
from rich.table import Table

from dordis.apps.learning.optim import FedAvg
from dordis.errors import InputError
from dordis.privacy import scaling
from dordis.privacy.encoding import SEED_BYTES, Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from reproduce import Experiment
from reproduce.cluster.command import costs
from reproduce.cluster.links import plan_links
from reproduce.cluster.prediction import predict_from_costs
from reproduce.costs import BITS

CLIENTS, CHUNKS, LATENCY, SEED = 16, 8, 0.05, 1
"""As on the measured cluster: clients of a round, chunks, seconds of the largest latency, and the seed of links."""
DIMS = (1_000_000, 11_000_000)
REPEATS = 5
WORTH = 0.02
"""The least saved share of a round for which steps after every chunk would be worth their code."""


@dataclass(frozen=True)
class Refinement:
    """Seconds of a round with `dim` coordinates, of decoding one chunk, and of the model's step on one chunk."""

    dim: int
    chunks: int
    round: float
    decode: float
    step: float

    @property
    def hidden(self) -> float:
        """Return the largest share of the round that can be saved: the steps of all chunks but the last."""
        return (self.chunks - 1) * self.step / self.round


def fastest(run: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of a few calls."""
    seconds = []
    for _ in range(REPEATS):
        start = thread_time()
        run()
        seconds.append(thread_time() - start)
    return min(seconds)


def measure_chunk(length: int) -> tuple[float, float]:
    """Return the CPU seconds that decoding a chunk and a step of FedAvg on its coordinates take."""
    grid = Grid(length, scaling.block_size(length), 100.0, BITS)
    mechanism = DSkellam(grid, 1.0, scaling.sensitivity(grid.scale, 1.0, grid.padded).squared)
    total = np.random.default_rng(SEED).integers(0, 1 << BITS, grid.padded, np.uint32)
    mean, parameters, optimiser = np.ones(length), np.zeros(length), FedAvg()

    def take_step() -> object:
        stepped, _ = optimiser.step(parameters, mean, {})
        return stepped.astype(np.float32).astype(np.float64)  # rounded as on the wire

    return fastest(lambda: mechanism.decode(total, 1, bytes(SEED_BYTES))), fastest(take_step)


def measure_refinement(dim: int) -> Refinement:
    """Measure one chunk, and predict the round from the measured costs of steps, with each client on its own device."""
    known = costs()
    if known is None:
        raise InputError("there are no measured costs: run python -m reproduce rounds --costs FILE in a clone")
    links = plan_links(CLIENTS, SEED, 1.0, LATENCY, 1.0)
    whole = predict_from_costs(known, links, dim, 0, CHUNKS, CLIENTS)
    return Refinement(dim, CHUNKS, whole, *measure_chunk(-(-dim // CHUNKS)))


def compare_refinement(dims: Sequence[int] = DIMS) -> Experiment:
    """Show how much of a round would be saved by changing the model after every chunk."""
    found = [measure_refinement(dim) for dim in dims]
    heads = (
        "coordinates",
        "chunks",
        "round, s",
        "decode a chunk, ms",
        "step of a chunk, ms",
        "hidden at most",
        "worth it",
    )
    table = Table(*heads, title=f"refining the model chunk by chunk, n = {CLIENTS}, 21 to 210 Mbps")
    for one in found:
        seconds = (f"{one.round:.1f}", f"{1000 * one.decode:.1f}", f"{1000 * one.step:.1f}")
        verdict = "yes" if one.hidden >= WORTH else f"no: below {WORTH:.0%}"
        table.add_row(f"{one.dim:,}", str(one.chunks), *seconds, f"{one.hidden:.2%}", verdict)
    table.caption = (
        "round: predicted from costs. Chunks are decoded as they arrive already; steps wait for the last one."
    )
    return Experiment([asdict(one) | {"hidden": one.hidden} for one in found], [table])
