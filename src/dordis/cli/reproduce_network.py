"""The paper's table of additional network traffic beside ours: XNoise and rebasing, compared to Orig.

The paper prints four sizes and the table, no formula.  `additional` gives all its twelve figures to the digit: every
client uploads a ciphertext for each of T seeds and n clients, discloses its own due seeds, and, as in the worst case
only t clients answer the unmasking, shares of the due seeds of all others.  Ours is counted in encoded messages, in
that case and in the usual one, in which all who uploaded answer.
"""

import copy
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from dordis import drive
from dordis.crypto.suite import DEFAULT
from dordis.errors import InputError
from dordis.kernels.packing import packed_size
from dordis.privacy.cell_table import GRID
from dordis.privacy.skellam import block_size, padded_length
from dordis.privacy.xnoise import Scheme
from dordis.protocol import ClientId, Message
from dordis.protocols.parameters import RUN_BYTES, Parameters, agree_on
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import REPLIES, CollectInput
from dordis.report.charts import Grouped, Layer
from dordis.report.svg import document
from dordis.simulation.exchange import LocalExchange

WEIGHT, SEED, SHARE, CIPHERTEXT = 2.5, 32, 16, 120
"""The paper's sizes in bytes."""
MEBI = 2**20
"""The paper's MB: 5M weights of 2.5 bytes are 11.9 of them."""
BITS = 20
"""Of a coordinate: the paper's 2.5 bytes."""
MODELS = (5_000_000, 50_000_000, 500_000_000)
RATES = tuple(Fraction(tenths, 10) for tenths in range(4))
CLIENTS = (100, 200, 300)
PAPER_REBASING = dict(zip(MODELS, (11.9, 119.2, 1192.1), strict=True))
PAPER_XNOISE = {
    (rate, n): value
    for rate, values in zip(RATES, ((0.6, 2.4, 5.5), (0.6, 2.4, 5.3), (0.6, 2.3, 5.2), (0.6, 2.3, 5.2)), strict=True)
    for n, value in zip(CLIENTS, values, strict=True)
}

LENGTH = 1000
"""Coordinates of the rounds that are counted: apart from the vector itself, bytes do not depend on it."""
LEAST_VARIANCE = Fraction(1, GRID)
"""Nor on the variance; from this one all components have the same noise table."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Traffic:
    """Bytes of a survivor, or how many more they are."""

    up: float
    down: float

    @property
    def both(self) -> float:
        """Return what is sent and received."""
        return self.up + self.down

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.up - other.up, self.down - other.down)


@dataclass(frozen=True)
class Counted:
    """The bytes of a survivor if all who uploaded answer the unmasking, and if only t of them do."""

    usual: Traffic
    worst: Traffic

    def __sub__(self, other: "Counted") -> "Counted":
        return Counted(self.usual - other.usual, self.worst - other.worst)


@dataclass(frozen=True)
class Row:
    """What XNoise adds to a survivor's bytes at one rate of dropout and one number of clients; ours by scheme."""

    rate: Fraction
    clients: int
    formula: float
    single: Counted
    exact: Counted

    @property
    def paper(self) -> float | None:
        """Return what the paper prints, if it does."""
        return PAPER_XNOISE.get((self.rate, self.clients))


def network(clients: Sequence[int], figure: Path | None, as_json: bool) -> None:
    """Print the table for some numbers of clients a round; draw it if a file is named."""
    if any(n < 4 for n in clients):
        raise InputError("a round that loses 30 % of its clients has at least 4")
    console = Console(stderr=as_json, soft_wrap=True)
    if console.is_terminal:
        with console.status("counting bytes") as status:
            found = rows(clients, lambda what: status.update(f"counting the bytes of {what}"))
    else:
        found = rows(clients)
    if figure is not None:
        figure.write_text(document(chart(found)), encoding="utf-8")
    if as_json:
        print(json.dumps([fields(row, model) for model in MODELS for row in found]))
        return
    console.print(rebasing_table())
    console.print(xnoise_table(found))


def _silent(what: str) -> None:
    """Tell nobody."""


def rows(clients: Sequence[int], tell: Tell = _silent) -> list[Row]:
    """Run rounds under `orig`, `single` and `exact`, and compare what a survivor sends and receives."""
    found = []
    for n in clients:
        counted = {}
        for scheme in (Scheme.ORIG, Scheme.SINGLE, Scheme.EXACT):
            tell(f"{n} clients, {scheme.value}")
            counted[scheme] = count(n, scheme, [dropped(n, rate) for rate in RATES])
        for place, rate in enumerate(RATES):
            without, single, exact = (counted[scheme][place] for scheme in counted)
            found.append(Row(rate, n, additional(n, dropped(n, rate)), single - without, exact - without))
    return sorted(found, key=lambda row: (row.rate, row.clients))


def dropped(n: int, rate: Fraction) -> int:
    """Return how many of n clients drop."""
    return math.floor(rate * n)


def majority(n: int) -> int:
    """Return t: the least majority."""
    return n // 2 + 1


class _NoReplay:
    """A journal that stores nothing: the states of hundreds of clients would not fit into memory."""

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        """Answer anew."""
        return respond()

    def close(self) -> None:
        """Forget nothing."""


def count(n: int, scheme: Scheme, dropouts: Iterable[int]) -> list[Counted]:
    """Run a round up to the upload once, and from there once for each number of dropouts and each case."""
    parameters = agreed(n, scheme)
    clients = {u: SecAggClient(u, np.zeros(LENGTH, np.uint32), _NoReplay()) for u in parameters.clients}
    server = SecAggServer(parameters)
    begun = LocalExchange(clients, REPLIES, ahead=True)
    ahead, *_ = server.chunks[0].workflow
    drive.advance([*server.setup.workflow, ahead], begun)

    def finish(D: int, answering: int) -> Traffic:
        known = {id(each): each for each in (DEFAULT, parameters)}
        ours, theirs = copy.deepcopy((server, clients), known)
        left, last = parameters.clients[: n - D], parameters.clients[:answering]
        ended = LocalExchange(theirs, REPLIES, lambda u, request: _is_lost(u, request, left, last))
        drive.advance(ours.chunks[0].workflow[1:], ended)
        return traffic([begun, ended], last)

    return [Counted(finish(D, n - D), finish(D, parameters.threshold)) for D in dropouts]


def agreed(n: int, scheme: Scheme) -> Parameters:
    """Return a round whose threshold is the least majority, and which tolerates all dropouts that it allows."""
    return agree_on(
        run=bytes(RUN_BYTES),
        index=0,
        clients=range(1, n + 1),
        threshold=majority(n),
        tolerance=n - majority(n),
        bits=BITS,
        ends=[LENGTH],
        scheme=scheme,
        variances=[LEAST_VARIANCE],
    )


def _is_lost(u: ClientId, request: Message, left: Collection[ClientId], last: Collection[ClientId]) -> bool:
    """Tell whether a client is gone: some before the upload, some before the unmasking."""
    return u not in (left if isinstance(request, CollectInput) else last)


def traffic(exchanges: Sequence[LocalExchange], survivors: Collection[ClientId]) -> Traffic:
    """Return the bytes of a survivor, on average."""
    up, down = Counter[ClientId](), Counter[ClientId]()
    for exchange in exchanges:
        up += exchange.sent
        down += exchange.received
    return Traffic(*(statistics.mean(counted[u] for u in survivors) for counted in (up, down)))


def additional(n: int, D: int) -> float:
    """Return the bytes that the paper's XNoise adds for a survivor when |D| of n clients have dropped.

    >>> round(additional(300, 0) / MEBI, 1)
    5.5
    """
    t = majority(n)
    T = n - t
    due = T - D
    return CIPHERTEXT * n * T + SEED * due + SHARE * (n - D - t) * due


def rebased(weights: int) -> float:
    """Return the bytes that rebasing adds: the noise, a whole vector, is sent again."""
    return WEIGHT * weights


def rebased_here(weights: int) -> int:
    """Return the same for our vectors, which are padded to whole blocks and packed."""
    return packed_size(padded_length(weights, block_size(weights)), BITS)


def rebasing_table() -> Table:
    """Show what rebasing adds, which depends on the model alone."""
    table = Table("parameters", "formula", "paper", "ours", title="rebasing: additional MB for a survivor")
    for weights in MODELS:
        values = (rebased(weights) / MEBI, PAPER_REBASING[weights], rebased_here(weights) / MEBI)
        table.add_row(f"{weights // 10**6}M", *(f"{value:.1f}" for value in values))
    return table


def xnoise_table(found: Sequence[Row]) -> Table:
    """Show what XNoise adds, which does not depend on the model."""
    heads = ("paper", "formula", "exact, up", "exact, usual", "single, up", "single, usual")
    table = Table("dropout", "clients", *heads, title="XNoise: additional MB for a survivor, whatever the model's size")
    for row in found:
        ours = [count for each in (row.exact, row.single) for count in (each.worst.up, each.usual.both)]
        cells = ("" if row.paper is None else f"{row.paper}", f"{row.formula / MEBI:.1f}", *map(_shown, ours))
        table.add_row(f"{float(row.rate):.0%}", str(row.clients), *cells)
    table.caption = (
        "paper, formula, up: what is uploaded if only t clients answer the unmasking; "
        "usual: up and down, if all who uploaded answer it"
    )
    return table


def chart(found: Sequence[Row]) -> Grouped:
    """Chart what a survivor uploads in the worst case, by number of clients, at the rate of dropout in the middle."""
    rate = RATES[1]
    chosen = [row for row in found if row.rate == rate]
    layers = {
        "the paper's formula": [row.formula for row in chosen],
        "ours, exact": [row.exact.worst.up for row in chosen],
        "ours, single": [row.single.worst.up for row in chosen],
    }
    return Grouped(
        f"what XNoise adds to a survivor's upload, {float(rate):.0%} dropout",
        "clients in a round",
        "MB",
        tuple(str(row.clients) for row in chosen),
        tuple(Layer(name, tuple(value / MEBI for value in values)) for name, values in layers.items()),
        note="only t clients answer the unmasking; rebasing adds 11.9 MB for 5M parameters, 1192 MB for 500M",
    )


def _shown(count: float) -> str:
    return f"{count / MEBI:.4f}"


def fields(row: Row, weights: int) -> dict[str, object]:
    """Return one cell of the paper's table as JSON, all in MB of 2^20 bytes."""
    return {
        "parameters": weights,
        "rate": float(row.rate),
        "clients": row.clients,
        "rebasing_formula": rebased(weights) / MEBI,
        "rebasing_paper": PAPER_REBASING[weights],
        "rebasing_ours": rebased_here(weights) / MEBI,
        "xnoise_formula": row.formula / MEBI,
        "xnoise_paper": row.paper,
        **_cells("single", row.single),
        **_cells("exact", row.exact),
    }


def _cells(scheme: str, counted: Counted) -> dict[str, float]:
    cases = {"": counted.usual, "_worst": counted.worst}
    return {
        f"{scheme}{case}{way}": value / MEBI
        for case, each in cases.items()
        for way, value in (("", each.both), ("_up", each.up))
    }
