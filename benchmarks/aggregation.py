"""Whole SecAgg rounds: CPU seconds, bytes and memory of a client and the server, and how they grow."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from benchmarks import folded_updates
from benchmarks.cold_start import call_kernels
from benchmarks.figure import Figure
from benchmarks.rounds import Costs, Setting, best_of, memory, play
from dordis.privacy.skellam_noise import GRID
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.parameters import MALICIOUS

Family = Callable[[bool], dict[str, float]]

FEW_LONG = Setting(clients=16, dim=1_000_000, threshold=9, dropped=2)
MANY_SHORT = Setting(clients=100, dim=100_000, threshold=51, dropped=10)
MANY_LONG = Setting(clients=100, dim=1_000_000, threshold=51, dropped=10)
SIGNED = replace(MANY_SHORT, mode=MALICIOUS)
SPARSE_LONG = Setting(128, 1_000_000, threshold=0, dropped=6, mode=MALICIOUS, tolerance=12)
SPARSE_MANY = Setting(1000, 100_000, threshold=0, dropped=50, mode=MALICIOUS, tolerance=100)
IN_MEMORY = Setting(clients=100, dim=11_000_000, threshold=51, dropped=10)
LITTLE_IN_MEMORY = Setting(clients=16, dim=200_000, threshold=9, dropped=2)

LEAST_VARIANCE = Fraction(1, GRID)
"""Bytes do not depend on the variance; from this one all components have the same noise table."""
TRAFFIC_BARS = {100: 0.01, 200: 0.02, 300: 0.03}
PAPER_TRAFFIC = {100: 0.6, 200: 2.4, 300: 5.5}
GROWTH_N = (16, 32, 64, 128, 300)
GROWTH_D = {"100k": 100_000, "1M": 1_000_000, "4M": 4_000_000, "11M": 11_000_000}

_CLIENT = "median survivor, its codec included"
_SERVER = "codec included, clients and building of noise tables not"
_RUN = "N = 1,000, n = 100, 50 rounds, (6, 10^-5)"
_FLOWER = "Flower's SecAgg+ on the complete graph, the wire not counted"

FIGURES = {
    "n16_d1M_client_s": Figure("s", at_most=0.06, note=f"n = 16, d = 10^6, b = 20, t = 9, 2 drop; {_CLIENT}"),
    "n16_d1M_client_max_s": Figure("s", note="the same, the survivor that takes longest"),
    "n16_d1M_upload_mb": Figure("MB", at_most=2.7, note="all replies of the client that sends most"),
    "n16_d1M_server_s": Figure("s", at_most=0.2, note=_SERVER),
    "n100_d100k_client_s": Figure("s", at_most=0.06, note=f"n = 100, d = 10^5, b = 20, t = 51, 10 drop; {_CLIENT}"),
    "n100_d100k_client_max_s": Figure("s", note="the same, the survivor that takes longest"),
    "n100_d100k_server_s": Figure("s", at_most=0.4, note=_SERVER),
    "mal_n100_d100k_client_s": Figure("s", at_most=0.09, note="the same against a malicious server, all signed"),
    "mal_n100_d100k_server_s": Figure("s", at_most=0.5, note="10 drop"),
    "plus_n128_d1M_client_s": Figure("s", at_most=0.15, note="SecAgg+, malicious, d = 10^6, T = 12, T_C = 1"),
    "plus_n128_d1M_server_s": Figure("s", at_most=1.5, note="6 drop"),
    "plus_n1000_d100k_client_s": Figure("s", at_most=0.4, note="SecAgg+, malicious, d = 10^5, T = 100, T_C = 1"),
    "plus_n1000_d100k_server_s": Figure("s", at_most=10, note="50 drop"),
    "proj_d11M_upload_kb": Figure("kB", at_most=160, note=f"folded, {_RUN}: the masked vector of d = 1.12 10^7 alone"),
    "proj_d1M_upload_kb": Figure("kB", at_most=150, note="the same for d = 10^6"),
    "proj_d11M_dispatch_kb": Figure("kB", at_most=50, note="the sum as it is delivered to a client"),
    "proj_d11M_client_s": Figure("s", note="median survivor of such a round, its encoding included"),
    "proj_d11M_server_s": Figure("s", note="its decoding included; 10 drop"),
    "unfolded_d11M_upload_kb": Figure("kB", note="the same without folding"),
    "unfolded_d11M_client_s": Figure("s", note="the same without folding"),
    "unfolded_d11M_server_s": Figure("s", note="the same without folding"),
    **{
        f"xnoise_mb_{n}": Figure("MB", at_most=bar, note=f"a survivor's bytes, `single` less `orig`, n = {n}, t = n/2")
        for n, bar in TRAFFIC_BARS.items()
    },
    **{
        f"xnoise_exact_mb_{n}": Figure("MB", note=f"the same for `exact`; the paper says {paper} MB")
        for n, paper in PAPER_TRAFFIC.items()
    },
    "xnoise_client_overhead": Figure(
        "times", at_most=1.1, note="fastest client, `single` over `orig`, n = 100, d = 10^6"
    ),
    "xnoise_server_overhead": Figure(
        "times", at_most=1.35, note="the same for the server, which removes what is due; 10 drop"
    ),
    "rss_n16_d200k_mb": Figure("MB", note="peak memory of the server's process with little to do: the floor"),
    "rss_n100_d11M_mb": Figure("MB", at_most=1000, note="the same, n = 100, d = 1.1 10^7, 10 drop"),
    **{f"growth_n{n}_{party}_s": Figure("s", note="d = 10^5") for n in GROWTH_N for party in ("client", "server")},
    "growth_n_client_exponent": Figure("", note="slope of the points above in log-log"),
    "growth_n_server_exponent": Figure("", note="10 % drop: n^2 pairs with one lost, so at most 2"),
    **{f"growth_d{d}_{party}_s": Figure("s", note="n = 32") for d in GROWTH_D for party in ("client", "server")},
    "growth_d_client_exponent": Figure("", note="slope of the points above in log-log"),
    "growth_d_server_exponent": Figure("", note="slope of the points above in log-log"),
    "flwr_n16_d1M_client_s": Figure("s", note=_FLOWER),
    "flwr_n16_d1M_server_s": Figure("s", note=_FLOWER),
    "flwr_n16_d1M_upload_mb": Figure("MB", note=_FLOWER),
    "flwr_n100_d100k_client_s": Figure("s", note=_FLOWER),
    "flwr_n100_d100k_server_s": Figure("s", note=_FLOWER),
}


def run(quick: bool) -> dict[str, float]:
    """Measure everything; a quick run leaves out what takes long."""
    call_kernels()
    families: tuple[Family, ...] = (
        _rounds,
        _malicious,
        folded_updates.run,
        _traffic,
        _overhead,
        _memory,
        _growth,
        _flower,
    )
    values: dict[str, float] = {}
    for family in families:
        values |= family(quick)
    return values


def _rounds(quick: bool) -> dict[str, float]:
    (few,) = best_of(1 if quick else 8, FEW_LONG)
    (many,) = best_of(1 if quick else 4, MANY_SHORT)
    return {
        "n16_d1M_client_s": few.client_s,
        "n16_d1M_client_max_s": few.client_max_s,
        "n16_d1M_upload_mb": few.upload_mb,
        "n16_d1M_server_s": few.server_s,
        "n100_d100k_client_s": many.client_s,
        "n100_d100k_client_max_s": many.client_max_s,
        "n100_d100k_server_s": many.server_s,
    }


def _malicious(quick: bool) -> dict[str, float]:
    (signed,) = best_of(1 if quick else 3, SIGNED)
    figures = {"mal_n100_d100k_client_s": signed.client_s, "mal_n100_d100k_server_s": signed.server_s}
    if quick:
        return figures
    (long,) = best_of(2, SPARSE_LONG)
    (many,) = best_of(1, SPARSE_MANY)
    return figures | {
        "plus_n128_d1M_client_s": long.client_s,
        "plus_n128_d1M_server_s": long.server_s,
        "plus_n1000_d100k_client_s": many.client_s,
        "plus_n1000_d100k_server_s": many.server_s,
    }


def _traffic(quick: bool) -> dict[str, float]:
    """Count the bytes that noise adds to a round without noise that could be removed."""
    figures = {}
    for n in list(TRAFFIC_BARS)[: 1 if quick else None]:
        without, single = (_bytes(n, scheme) for scheme in (Scheme.ORIG, Scheme.SINGLE))
        figures[f"xnoise_mb_{n}"] = single - without
        if not quick:
            figures[f"xnoise_exact_mb_{n}"] = _bytes(n, Scheme.EXACT) - without
    return figures


def _bytes(n: int, scheme: Scheme) -> float:
    setting = Setting(n, dim=1000, threshold=n // 2, dropped=n // 10, scheme=scheme, variance=LEAST_VARIANCE)
    return play(setting, setting.parameters()).traffic_mb


def _overhead(quick: bool) -> dict[str, float]:
    """Compare the fastest client of one scheme with that of the other: medians of whole rounds drift with the load."""
    if quick:
        return {}
    without, single = best_of(3, replace(MANY_LONG, scheme=Scheme.ORIG), MANY_LONG)
    return {
        "xnoise_client_overhead": single.client_min_s / without.client_min_s,
        "xnoise_server_overhead": single.server_s / without.server_s,
    }


def _memory(quick: bool) -> dict[str, float]:
    floor = {"rss_n16_d200k_mb": memory(LITTLE_IN_MEMORY)}
    return floor if quick else floor | {"rss_n100_d11M_mb": memory(IN_MEMORY)}


def _growth(quick: bool) -> dict[str, float]:
    """Measure a client and the server at growing n and at growing d, and fit powers; a quick run takes two points."""
    sizes = GROWTH_N[: 2 if quick else None]
    dims = dict(list(GROWTH_D.items())[: 2 if quick else None])
    by_n = [_grown(n, 100_000, quick) for n in sizes]
    by_d = [_grown(32, d, quick) for d in dims.values()]
    return _points("n", sizes, sizes, by_n) | _points("d", list(dims), list(dims.values()), by_d)


def _grown(n: int, d: int, quick: bool) -> Costs:
    count = 1 if quick or n * d > 64 * 100_000 else 3
    (costs,) = best_of(count, Setting(clients=n, dim=d, threshold=n // 2 + 1, dropped=n // 10))
    return costs


def _points(axis: str, names: Sequence[object], sizes: Sequence[int], costs: Sequence[Costs]) -> dict[str, float]:
    sides = {"client": [each.client_s for each in costs], "server": [each.server_s for each in costs]}
    figures = {
        f"growth_{axis}{name}_{party}_s": seconds[place]
        for place, name in enumerate(names)
        for party, seconds in sides.items()
    }
    return figures | {
        f"growth_{axis}_{party}_exponent": float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
        for party, seconds in sides.items()
    }


def _flower(quick: bool) -> dict[str, float]:
    """Measure Flower beside us, if it is there."""
    try:
        from benchmarks import flower_secagg
    except ImportError:
        return {}
    few = flower_secagg.play(FEW_LONG)
    figures = {
        "flwr_n16_d1M_client_s": few.client_s,
        "flwr_n16_d1M_server_s": few.server_s,
        "flwr_n16_d1M_upload_mb": few.upload_mb,
    }
    if quick:
        return figures
    many = flower_secagg.play(MANY_SHORT)
    return figures | {"flwr_n100_d100k_client_s": many.client_s, "flwr_n100_d100k_server_s": many.server_s}
