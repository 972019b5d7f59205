"""Plan the noise of a run, its graph, or its number of chunks.

Without a command, dordis plan is dordis plan noise.
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.output import make_table, print_result
from dordis.errors import InputError

AUTO = "auto"

Dropout = Annotated[float | None, typer.Option(help="The largest share of a round's clients that may drop out.")]
Tolerance = Annotated[int | None, typer.Option(help="Clients of a round that may drop out, instead of --dropout.")]


def plan_noise(
    clients: Annotated[int, typer.Option(help="How many clients there are.")],
    per_round: Annotated[int, typer.Option(help="How many clients take part in a round.")],
    rounds: Annotated[int, typer.Option(help="How many rounds there are.")],
    dim: Annotated[int, typer.Option(help="How many coordinates an update has.")],
    epsilon: Annotated[float | None, typer.Option(help="The budget: find the least noise for it.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise on the sum, in units of updates: find epsilon.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta; min(N^-1.1, 1e-5) for N clients if not given. The paper has 1/N.")
    ] = None,
    clip: Annotated[float, typer.Option(help="The largest norm of an update.")] = 1.0,
    clip_share: Annotated[
        float, typer.Option(help="Share of the budget for a clip bound that follows a quantile; 0: the bound is fixed.")
    ] = 0.0,
    bits: Annotated[str, typer.Option(help="Bits of a coordinate; auto: the fewest without loss.")] = AUTO,
    projection: Annotated[
        str, typer.Option(help="Number of coordinates to which updates are folded: a number, auto or off.")
    ] = AUTO,
    accounting: Annotated[
        str,
        typer.Option(help="Rounds that are charged: cap (those of one client), all-rounds, or paper (all, by Renyi)."),
    ] = "cap",
    dropout: Dropout = None,
    tolerance: Tolerance = None,
    colluders: Annotated[int, typer.Option(help="How many of all clients may collude with the server.")] = 1,
    protocol: Annotated[str, typer.Option(help="secagg, secagg+ with its sparse graph, or assisted.")] = "secagg",
    selection: Annotated[str, typer.Option(help="balanced, uniform, vrf (verifiable draws), or open.")] = "balanced",
    beacon: Annotated[
        bool, typer.Option("--beacon", help="With balanced: published randomness decides the selection.")
    ] = False,
    mode: Annotated[str, typer.Option(help="A semi-honest or a malicious server.")] = "malicious",
    participations: Annotated[
        int | None, typer.Option(help="With vrf or open: most rounds of one client, instead of ceil(R n / N).")
    ] = None,
    unit: Annotated[str, typer.Option(help="The unit of privacy: client or record.")] = "client",
    records: Annotated[int, typer.Option(help="With --unit record: the largest number of records of a client.")] = 0,
    sampling: Annotated[float, typer.Option(help="With --unit record: probability of sampling a record.")] = 1.0,
    clients_per_person: Annotated[
        int, typer.Option(help="With --unit record: also show epsilon of a person with a record at this many clients.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Choose the noise for a budget, or find epsilon for given noise."""
    _check_one_tolerance(dropout, tolerance)
    if (epsilon is None) == (sigma is None):
        raise InputError("plan noise needs either --epsilon, a budget, or --sigma, the noise on the sum")
    selections = ("balanced", "uniform", "vrf", *(("open",) if protocol == "assisted" else ()))
    if protocol not in ("secagg", "secagg+", "assisted") or selection not in selections:
        raise InputError(
            "--protocol is 'secagg', 'secagg+' or 'assisted', --selection 'balanced', 'uniform', 'vrf' or, with "
            "'assisted', 'open'"
        )
    if unit not in ("client", "record"):
        raise InputError(f"--unit is 'client' or 'record', not '{unit}'")
    if unit == "record" and (epsilon is None or records < 1):
        raise InputError("plan noise --unit record needs --epsilon, a budget, and --records, those of each client")
    from dordis.cli.plan_noise import NoiseQuestion, show_plan

    question = NoiseQuestion(
        clients,
        per_round,
        rounds,
        dim,
        epsilon=epsilon,
        sigma=sigma,
        delta=delta,
        clip=clip,
        clip_share=clip_share,
        bits=_read_bits(bits),
        projection=_read_projection(projection),
        accounting=accounting,
        tolerance=tolerance,
        dropout=dropout,
        colluders=colluders,
        sparse=protocol == "secagg+",
        selection=selection,
        beacon=beacon,
        mode=mode,
        sampled=(records, sampling) if unit == "record" else None,
        clients_per_person=clients_per_person,
        participations=participations,
        assisted=protocol == "assisted",
    )
    show_plan(question, as_json)


def plan_graph(
    clients: Annotated[int, typer.Option(help="How many clients take part in a round.")],
    dropout: Dropout = None,
    tolerance: Tolerance = None,
    colluders: Annotated[int, typer.Option(help="How many clients of a round may collude with the server.")] = 1,
    mode: Annotated[str, typer.Option(help="A semi-honest or a malicious server.")] = "malicious",
    as_json: Json = False,
) -> None:
    """Choose the neighbours and thresholds of a SecAgg+ round.

    Without --dropout and --tolerance, one client in ten may drop out.
    """
    from dordis.privacy.xnoise_components import default_tolerance
    from dordis.protocols.sparse_graph import solve

    _check_one_tolerance(dropout, tolerance)
    T = default_tolerance(clients, 0, sparse=True) if tolerance is None else tolerance
    if dropout is not None:
        from dordis.runs.threat_model import count_dropouts

        T = count_dropouts(clients, dropout)
    solution = solve(clients, T, colluders, mode)
    kind = "the complete graph" if solution.complete else "a circulant graph"
    title = f"SecAgg+, {mode}: {clients} clients, of which {T} may drop out and {colluders} collude: {kind}"
    heads = ("neighbours", "threshold", "quorum", "colluders", "secrecy fails (log2)", "round fails (log2)")
    counts = (solution.degree, solution.threshold, solution.quorum, solution.colluders)
    row = (*map(str, counts), _format_log(solution.p_security), _format_log(solution.p_correctness))
    settings = {"mode": mode, "clients": clients, "tolerance": T, "tolerated_colluders": colluders}
    chosen = asdict(solution) | {"p_security": solution.p_security}
    fields = settings | {name: None if value == -math.inf else value for name, value in chosen.items()}
    print_result(as_json, fields, make_table(*heads, rows=[row], title=title))


def plan_pipeline(
    profile: Annotated[Path, typer.Option(help="A file that `dordis profile` wrote.")],
    dim: Annotated[int, typer.Option(help="How many coordinates an update has.")],
    as_json: Json = False,
) -> None:
    """Choose the number of chunks of a round, from a profile."""
    from dordis.cli.plan_pipeline import show_pipeline

    show_pipeline(profile, dim, as_json)


COMMANDS = {"noise": plan_noise, "graph": plan_graph, "pipeline": plan_pipeline}
DEFAULT = "noise"


def _check_one_tolerance(dropout: float | None, tolerance: int | None) -> None:
    if dropout is not None and tolerance is not None:
        raise InputError("give --dropout or --tolerance, not both")


def _read_projection(text: str) -> str | int:
    """Return the value of --projection: a number of coordinates, or one of `auto`, `adaptive` and `off`."""
    if text in (AUTO, "adaptive", "off"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--projection takes a number, '{AUTO}' or 'off', not '{text}'")
    return int(text)


def _read_bits(text: str) -> int | None:
    if text == AUTO:
        return None
    if not text.isdecimal():
        raise InputError(f"--bits takes a number or '{AUTO}', not '{text}'")
    return int(text)


def _format_log(logarithm: float) -> str:
    return "never" if logarithm == -math.inf else f"{logarithm:.1f}"
