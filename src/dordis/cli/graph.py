"""The graph of a round of SecAgg+: how many neighbours and which thresholds a number of clients needs."""

import json
import math
from dataclasses import asdict
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from dordis.errors import InputError
from dordis.protocols.neighbourhood import Neighbourhood, solve

DROPOUT = 0.1


def plan(clients: int, dropout: float | None, tolerance: int | None, colluders: int, mode: str, as_json: bool) -> None:
    """Find the least graph for a dropout rate or a tolerance, and print it."""
    if dropout is not None and tolerance is not None:
        raise InputError("give --dropout or --tolerance, not both")
    T = dropped(clients, DROPOUT if dropout is None else dropout) if tolerance is None else tolerance
    found = solve(clients, T, colluders, mode)
    if as_json:
        print(json.dumps(fields(clients, T, colluders, mode, found)))
        return
    kind = "the complete graph" if found.complete else "a circulant graph"
    title = f"SecAgg+, {mode}: {clients} clients, T = {T}, T_C = {colluders}: {kind}"
    table = Table("k", "t_k", "q", "c_k", "secrecy fails (log2)", "round fails (log2)", title=title)
    numbers = (found.degree, found.threshold, found.quorum, found.colluders)
    table.add_row(*map(str, numbers), shown(found.p_security), shown(found.p_correctness))
    Console(soft_wrap=True).print(table)


def dropped(clients: int, dropout: float) -> int:
    """Return floor(dropout n) for the dropout rate as it was written in decimals."""
    if not 0 <= dropout < 1:
        raise InputError(f"a dropout rate lies in [0, 1), not {dropout}")
    return math.floor(Fraction(str(dropout)) * clients)


def fields(clients: int, T: int, colluders: int, mode: str, found: Neighbourhood) -> dict[str, object]:
    """Return what is printed as JSON; the logarithm of 0 is null."""
    chosen = asdict(found) | {"p_security": found.p_security}
    given = {"mode": mode, "clients": clients, "tolerance": T, "tolerated_colluders": colluders}
    return given | {name: None if value == -math.inf else value for name, value in chosen.items()}


def shown(logarithm: float) -> str:
    """Write a logarithm for people."""
    return "never" if logarithm == -math.inf else f"{logarithm:.1f}"
