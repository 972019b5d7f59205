"""Plan before a run: its noise, the graph of SecAgg+, or the number of chunks of a round."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.errors import InputError

AUTO = "auto"


def plan(
    clients: Annotated[int | None, typer.Option(help="How many clients there are; with --graph, in a round.")] = None,
    per_round: Annotated[int | None, typer.Option(help="How many clients take part in a round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds there are.")] = None,
    dim: Annotated[int | None, typer.Option(help="How many coordinates an update has.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget: find the least noise for it.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise on the sum, in units of updates: find epsilon.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="For N clients min(N^-1.1, 1e-5) if not given; the paper's is 1/N.")
    ] = None,
    clip: Annotated[float, typer.Option(help="The largest norm of an update.")] = 1.0,
    clip_share: Annotated[
        float, typer.Option(help="Part of the budget for a clip bound that follows a quantile; 0: it is fixed.")
    ] = 0.0,
    bits: Annotated[str, typer.Option(help="Bits of a coordinate, or auto for as few as do no harm.")] = AUTO,
    projection: Annotated[
        str, typer.Option(help="Coordinates that an update is folded into: a number, auto or off.")
    ] = AUTO,
    accounting: Annotated[
        str, typer.Option(help="cap: over the rounds one client takes part in; all-rounds: as in the paper.")
    ] = "cap",
    graph: Annotated[bool, typer.Option("--graph", help="Plan the graph of SecAgg+ instead.")] = False,
    dropout: Annotated[
        float | None, typer.Option(help="Which part of a round may drop out; with --graph 0.1 if not given.")
    ] = None,
    tolerance: Annotated[
        int | None, typer.Option(help="How many clients of a round may drop out, instead of --dropout.")
    ] = None,
    colluders: Annotated[
        int,
        typer.Option(help="Clients that may collude with the server: of all clients; with --graph, of a round."),
    ] = 1,
    protocol: Annotated[str, typer.Option(help="secagg, or secagg+ with its sparse graph.")] = "secagg",
    selection: Annotated[str, typer.Option(help="balanced or uniform, or vrf: clients draw lots.")] = "balanced",
    beacon: Annotated[
        bool, typer.Option("--beacon", help="With balanced: published randomness decides the selection.")
    ] = False,
    mode: Annotated[
        str, typer.Option(help="For secagg+: semi-honest or malicious, the server that is guarded against.")
    ] = "malicious",
    pipeline: Annotated[bool, typer.Option("--pipeline", help="Plan the number of chunks instead.")] = False,
    profile: Annotated[Path | None, typer.Option(help="With --pipeline: a file of `dordis profile`.")] = None,
    as_json: Json = False,
) -> None:
    """Choose the noise for a budget, or find epsilon for given noise.

    With --graph choose the graph of SecAgg+ instead, with --pipeline the number of chunks.
    """
    if pipeline:
        from dordis.cli import plan_pipeline

        plan_pipeline.plan(profile, dim, as_json)
        return
    if clients is None:
        raise typer.BadParameter("give the number of clients", param_hint="--clients")
    if dropout is not None and tolerance is not None:
        raise InputError("give --dropout or --tolerance, not both")
    from dordis.cli import graph as graphs

    if graph:
        graphs.plan(clients, dropout, tolerance, colluders, mode, as_json)
        return
    if per_round is None or rounds is None or dim is None:
        raise InputError("plan needs --clients, --per-round, --rounds and --dim; for a graph of SecAgg+, --graph")
    if (epsilon is None) == (sigma is None):
        raise InputError("plan needs either --epsilon, a budget, or --sigma, the noise on the sum")
    from dordis.cli import plan as noise
    from dordis.federation.colluders import is_drawn, round_colluders
    from dordis.federation.design import ProtocolKind
    from dordis.privacy import planning
    from dordis.privacy import projection as folding
    from dordis.privacy.accounting import ParticipationSchedule, multiplier_of
    from dordis.protocols.limits import MOST_CLIENTS

    if protocol not in ("secagg", "secagg+") or selection not in ("balanced", "uniform", "vrf"):
        raise InputError("--protocol is 'secagg' or 'secagg+', --selection 'balanced', 'uniform' or 'vrf'")
    kind = ProtocolKind(mode, sparse=protocol == "secagg+", drawn=is_drawn(selection, beacon))

    def setting(n: int, R: int) -> planning.Setting:
        in_proportion = None if tolerance is None else tolerance * n // per_round
        given = planning.Setting(
            ParticipationSchedule(clients, n, R, accounting),
            dim=dim,
            clip=clip,
            delta=delta,
            bits=read_bits(bits),
            tolerance=in_proportion if dropout is None else graphs.dropped(n, dropout),
            colluders=round_colluders(selection, beacon, clients, n, colluders, mode),
            share=clip_share,
            failure=kind.failure(R),
            sparse=kind.sparse,
        )
        if sigma is None:
            multiplier = multiplier_of(given.allowance(epsilon or 0.0) * (1 - clip_share))
        else:
            multiplier = sigma / clip
        return replace(given, buckets=folding.chosen(given, multiplier, read_projection(projection)))

    given = setting(per_round, rounds)
    planned = planning.plan(given, epsilon) if epsilon is not None else planning.account(given, sigma or 0.0)

    def replan(n: int, R: int) -> planning.Plan:
        if n > MOST_CLIENTS:
            raise InputError(f"a round has at most {MOST_CLIENTS} clients, not {n}")
        return planning.plan(setting(n, R), planned.epsilon)

    once = round_colluders(selection, beacon, clients, per_round, colluders, "semi-honest")
    noise.show(planned, replan, noise.Collusion(colluders, once, drawn=kind.drawn), as_json)


def read_projection(text: str) -> str | int:
    """Read a number of coordinates, `auto`, `off`, or `adaptive`, which begins like `auto`."""
    if text in (AUTO, "adaptive", "off"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--projection takes a number, '{AUTO}' or 'off', not '{text}'")
    return int(text)


def read_bits(text: str) -> int | None:
    """Read a number of bits, or `auto`."""
    if text == AUTO:
        return None
    if not text.isdecimal():
        raise InputError(f"--bits takes a number or '{AUTO}', not '{text}'")
    return int(text)
