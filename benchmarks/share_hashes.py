"""The cost of the hashes of shares: the same round with and without them, in turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from benchmarks.aggregation import MANY_SHORT
from benchmarks.cold_start import call_kernels
from benchmarks.figure import Figure
from benchmarks.rounds import Costs, play
from dordis.protocols.parameters import Parameters

SECAGG = "dordis.protocols.secagg"

FIGURES = {
    "blame_cpu_overhead": Figure(
        "times", at_most=1.1, note="n = 100, d = 10^5, m = 1, 10 drop: n times the fastest client, and the server"
    ),
    "blame_bytes_overhead": Figure("times", at_most=1.1, note="all requests and replies of a survivor"),
    "blame_client_overhead": Figure("times", note="the fastest client alone"),
    "blame_server_overhead": Figure("times", note="the server alone"),
}


def run(quick: bool) -> dict[str, float]:
    """Play rounds with hashes and without in turn, and compare the best of each."""
    call_kernels()
    parameters = MANY_SHORT.parameters()
    with_hashes, without = _both(parameters)
    for _ in range(0 if quick else 6):
        one, other = _both(parameters)
        with_hashes, without = with_hashes.best(one), without.best(other)
    return {
        "blame_cpu_overhead": _seconds(with_hashes) / _seconds(without),
        "blame_bytes_overhead": with_hashes.traffic_mb / without.traffic_mb,
        "blame_client_overhead": with_hashes.client_min_s / without.client_min_s,
        "blame_server_overhead": with_hashes.server_s / without.server_s,
    }


def _seconds(costs: Costs) -> float:
    return MANY_SHORT.clients * costs.client_min_s + costs.server_s


def _both(parameters: Parameters) -> tuple[Costs, Costs]:
    with_hashes = play(MANY_SHORT, parameters)
    with no_hashes():
        return with_hashes, play(MANY_SHORT, parameters)


@contextmanager
def no_hashes() -> Iterator[None]:
    """Take the hashes out: none is made, sent or compared."""
    with (
        patch(f"{SECAGG}.client.share_hashes", lambda *_: b""),
        patch(f"{SECAGG}.client.split_hashes", lambda _, sent: (sent, b"")),
        patch(f"{SECAGG}.setup.hashes_length", lambda _: 0),
        patch(
            f"{SECAGG}.setup.SetupServer.fits",
            lambda self, chunk, holder, wanted, shares: np.ones(len(wanted), np.bool_),
        ),
        patch(f"{SECAGG}.client_checks.check_share_fits", lambda *_: None),
    ):
        yield
