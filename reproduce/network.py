"""The paper's table of additional network traffic beside ours: XNoise and rebasing, compared to Orig.

The paper prints four sizes in bytes and the table, but no formula.  `additional_bytes` gives the table's twelve figures
as printed.  It adds up what we take for three parts: encrypted shares that a survivor sends and receives (120 bytes for
each of T seeds and n clients), its own due seeds, and shares of the due seeds of survivors that do not answer the
unmasking.  In the worst case only t survivors answer it, in the usual case all do.  Our figures are bytes of encoded
messages in both cases, in both directions and sent only.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from statistics import mean

import numpy as np
from rich.table import Table

from dordis.crypto.suite import DEFAULT
from dordis.errors import InputError
from dordis.kernels.ring import packed_size
from dordis.pipeline import executor as drive
from dordis.privacy.scaling import block_size, padded_length
from dordis.privacy.skellam_noise import GRID
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, MemoryJournal, Message
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.parameters import RUN_BYTES
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.report.charts import BarChart, Series
from dordis.rounds.model import DTYPES
from dordis.simulation.exchange import LocalExchange
from reproduce import Experiment
from reproduce.costs import BITS
from reproduce.round_times import RATES, SCHEMES, folded_length

WEIGHT, SEED, SHARE, CIPHERTEXT = 2.5, 32, 16, 120
"""The paper's sizes in bytes; the last one is that of an encrypted share."""
MEBI = 2**20
"""The paper's MB: 5M weights of 2.5 bytes are 11.9 of them."""
CLIENTS = (100, 200, 300)
PAPER_REBASING = {5_000_000: 11.9, 50_000_000: 119.2, 500_000_000: 1192.1}
"""MB by weights of the model."""
PAPER_XNOISE = {
    (rate, n): value
    for rate, values in zip(RATES, ((0.6, 2.4, 5.5), (0.6, 2.4, 5.3), (0.6, 2.3, 5.2), (0.6, 2.3, 5.2)), strict=True)
    for n, value in zip(CLIENTS, values, strict=True)
}
"""MB by rate of dropout and clients of a round."""

CASES = ("_worst", "_worst_up", "")
"""Columns of the table: in the worst case both ways, and sent only; in the usual case both ways."""
LENGTH = 1000
"""Coordinates of the counted rounds: apart from the vector itself, no size depends on them."""
LEAST_VARIANCE = Fraction(1, GRID)
"""Variance of the counted rounds, on which no size depends; with it all components use the same noise table."""


@dataclass(frozen=True)
class Row:
    """What XNoise adds to the MB of a survivor at one rate of dropout and one number of clients.

    `paper` is the paper's figure, if it prints one, and `formula` that of `additional_bytes`.  The keys of `ours` are
    `single` (usual case, both ways), `single_up` (sent only), `single_worst`, `single_worst_up`, and so for `exact`.
    """

    rate: Fraction
    clients: int
    paper: float | None
    formula: float
    ours: dict[str, float]


def compare_traffic(clients: Sequence[int], report: Callable[[str], None] = lambda what: None) -> Experiment:
    """Compare what survivors send and receive, in MB of 2^20 bytes, by the number of clients in a round.

    It takes minutes; `report` is called with the configuration that is counted next.
    """
    if any(n < 4 for n in clients):
        raise InputError("a round that loses 30 % of its clients has at least 4")
    counted = count_rows(clients, report)
    data = [
        {
            "parameters": weights,
            "rate": float(row.rate),
            "clients": row.clients,
            **{f"rebasing_{source}": value for source, value in rebasing_megabytes(weights).items()},
            "xnoise_formula": row.formula,
            "xnoise_paper": row.paper,
            **row.ours,
        }
        for weights in PAPER_REBASING
        for row in counted
    ]
    return Experiment(data, [rebasing_table(), xnoise_table(counted)], [("network", chart(counted))])


def count_rows(clients: Sequence[int], report: Callable[[str], None]) -> list[Row]:
    """Run rounds under `orig`, `single` and `exact`, and compare what a survivor sends and receives."""
    counts = {}
    for n, scheme in product(sorted(clients), SCHEMES):
        report(f"{n} clients, {scheme.value}")
        counts[n, scheme] = count(n, scheme, [count_dropped(n, rate) for rate in RATES])
    compared = []
    for (place, rate), n in product(enumerate(RATES), sorted(clients)):
        orig, single, exact = (counts[n, scheme][place] for scheme in SCHEMES)
        ours = {f"single{case}": (single[case] - orig[case]) / MEBI for case in orig}
        ours |= {f"exact{case}": (exact[case] - orig[case]) / MEBI for case in orig}
        formula = additional_bytes(n, count_dropped(n, rate)) / MEBI
        compared.append(Row(rate, n, PAPER_XNOISE.get((rate, n)), formula, ours))
    return compared


def count_dropped(n: int, rate: Fraction) -> int:
    """Return the number of dropouts among n clients."""
    return math.floor(rate * n)


def least_majority(n: int) -> int:
    """Return the threshold t: the smallest majority of n clients."""
    return n // 2 + 1


class NoReplay(MemoryJournal):
    """A journal that stores nothing: the states of hundreds of clients would not fit into memory."""

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        """Answer anew."""
        return respond()[1]


def count(n: int, scheme: Scheme, dropouts: Iterable[int]) -> list[dict[str, float]]:
    """Run a round up to the upload once, and from there once for each number of dropouts and each case.

    Return the bytes of a survivor, both ways and sent alone (`_up`), in the usual case and in the worst (`_worst`).
    The threshold t is the least majority, and T all the dropouts that it allows.
    """
    parameters = agree_on(
        run=bytes(RUN_BYTES),
        index=0,
        clients=range(1, n + 1),
        threshold=least_majority(n),
        tolerance=n - least_majority(n),
        bits=BITS,
        ends=[LENGTH],
        scheme=scheme,
        variances=[LEAST_VARIANCE],
    )
    clients = {u: SecAggClient(u, NoisyInput(np.zeros(LENGTH, np.uint32)), NoReplay()) for u in parameters.clients}
    server = SecAggServer(parameters)
    before = LocalExchange(clients, ahead=True)
    ahead, *_ = server.chunks[0].workflow
    drive.advance([*server.setup.workflow, ahead], before)

    def finish(D: int, answering: int) -> tuple[float, float]:
        """Return the mean bytes sent and received by the `answering` clients, which answer every request."""
        shared = {id(value): value for value in (DEFAULT, parameters)}
        server_copy, clients_copy = copy.deepcopy((server, clients), shared)
        uploading, last = parameters.clients[: n - D], parameters.clients[:answering]

        def is_lost(u: ClientId, request: Message) -> bool:
            return u not in (uploading if isinstance(request, CollectInput) else last)

        after = LocalExchange(clients_copy, is_lost)
        drive.advance(server_copy.chunks[0].workflow[1:], after)
        up = mean(before.sent[u] + after.sent[u] for u in last)
        return up, mean(before.received[u] + after.received[u] for u in last)

    counted = []
    for D in dropouts:
        (up, down), (worst_up, worst_down) = finish(D, n - D), finish(D, parameters.threshold)
        counted.append({"": up + down, "_up": up, "_worst": worst_up + worst_down, "_worst_up": worst_up})
    return counted


def additional_bytes(n: int, D: int) -> float:
    """Return the bytes that the paper's XNoise adds for a survivor if D of n clients drop out before the upload.

    >>> round(additional_bytes(300, 0) / MEBI, 1)
    5.5
    """
    t = least_majority(n)
    T = n - t
    due = T - D
    return CIPHERTEXT * n * T + SEED * due + SHARE * (n - D - t) * due


def rebasing_megabytes(weights: int) -> dict[str, float]:
    """Return the MB that rebasing adds for a survivor, who sends a whole vector of noise; `ours` is padded and packed.

    For comparison: `model` is the size of the model that a client downloads, `projected` that of a folded vector.
    """
    return {
        "formula": WEIGHT * weights / MEBI,
        "paper": PAPER_REBASING[weights],
        "ours": packed_size(padded_length(weights, block_size(weights)), BITS) / MEBI,
        "model": np.dtype(DTYPES[0]).itemsize * weights / MEBI,
        "projected": packed_size(folded_length(weights, CLIENTS[0]), BITS) / MEBI,
    }


def rebasing_table() -> Table:
    """Return the table of what rebasing adds, which depends on the model alone."""
    heads = ("formula", "paper", "ours", "the model, down", f"projected, n = {CLIENTS[0]}")
    table = Table("parameters", *heads, title="rebasing: additional MB for a survivor")
    for weights in PAPER_REBASING:
        table.add_row(f"{weights // 10**6}M", *(f"{value:.1f}" for value in rebasing_megabytes(weights).values()))
    table.caption = "projected: folded for 1,000 clients, 100 a round, 50 rounds, (6, 10^-5)"
    return table


def xnoise_table(compared: Sequence[Row]) -> Table:
    """Return the table of what XNoise adds, which does not depend on the model."""
    heads = ("paper", "formula", "exact, both ways", "sent", "usual", "single, both ways", "sent", "usual")
    table = Table("dropout", "clients", *heads, title="XNoise: additional MB for a survivor, whatever the model's size")
    for row in compared:
        ours = (row.ours[f"{scheme}{case}"] for scheme in ("exact", "single") for case in CASES)
        cells = ("" if row.paper is None else f"{row.paper}", f"{row.formula:.1f}", *(f"{value:.4f}" for value in ours))
        table.add_row(f"{float(row.rate):.0%}", str(row.clients), *cells)
    table.caption = (
        "both ways: sent and received if only t clients answer the unmasking, beside the paper and its formula; "
        "usual: both ways, if all who uploaded answer it"
    )
    return table


def chart(compared: Sequence[Row]) -> BarChart:
    """Chart what a survivor sends and receives in the worst case, by number of clients, at 10 % dropout."""
    shown = [row for row in compared if row.rate == RATES[1]]
    return BarChart(
        f"what XNoise adds to a survivor, both ways, {float(RATES[1]):.0%} dropout",
        "clients in a round",
        "MB",
        (
            Series("the paper's formula", tuple(row.formula for row in shown)),
            Series("ours, exact", tuple(row.ours["exact_worst"] for row in shown)),
            Series("ours, single", tuple(row.ours["single_worst"] for row in shown)),
        ),
        categories=tuple(str(row.clients) for row in shown),
        stacked=False,
    )
