"""The graph of a round of SecAgg+: how many neighbours and which thresholds a number of clients needs."""

import math
from dataclasses import asdict
from fractions import Fraction

from dordis.cli.tables import show, table
from dordis.errors import InputError
from dordis.privacy.xnoise import default_tolerance
from dordis.protocols.neighbourhood import Neighbourhood, solve


def plan(clients: int, dropout: float | None, tolerance: int | None, colluders: int, mode: str, as_json: bool) -> None:
    """Find the least graph for a dropout rate or a tolerance, and print it."""
    usual = default_tolerance(clients, 0, sparse=True)
    T = tolerance if tolerance is not None else usual if dropout is None else dropped(clients, dropout)
    solution = solve(clients, T, colluders, mode)
    kind = "the complete graph" if solution.complete else "a circulant graph"
    title = f"SecAgg+, {mode}: {clients} clients, of which {T} may drop out and {colluders} collude: {kind}"
    heads = ("neighbours", "threshold", "quorum", "colluders", "secrecy fails (log2)", "round fails (log2)")
    numbers = (solution.degree, solution.threshold, solution.quorum, solution.colluders)
    row = (*map(str, numbers), shown(solution.p_security), shown(solution.p_correctness))
    show(as_json, fields(clients, T, colluders, mode, solution), table(*heads, rows=[row], title=title))


def dropped(clients: int, dropout: float) -> int:
    """Return floor(dropout n) for the dropout rate as it was written in decimals."""
    if not 0 <= dropout < 1:
        raise InputError(f"a dropout rate lies in [0, 1), not {dropout}")
    return math.floor(Fraction(str(dropout)) * clients)


def fields(clients: int, T: int, colluders: int, mode: str, solution: Neighbourhood) -> dict[str, object]:
    """Return what is printed as JSON; the logarithm of 0 is null."""
    chosen = asdict(solution) | {"p_security": solution.p_security}
    given = {"mode": mode, "clients": clients, "tolerance": T, "tolerated_colluders": colluders}
    return given | {name: None if value == -math.inf else value for name, value in chosen.items()}


def shown(logarithm: float) -> str:
    """Write a logarithm for people."""
    return "never" if logarithm == -math.inf else f"{logarithm:.1f}"
