"""`dordis plan` plans the noise of a run, its graph (who shares masks in SecAgg+), or its number of chunks.

`dordis profile` times small rounds whose updates are zeros, fits the performance model to these times, and writes the
fitted model to a file, from which `dordis plan pipeline` computes the number of chunks.
"""

import math
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import ConfigFile, Json, Overrides, Preset
from dordis.cli.output import make_console, make_table, print_result
from dordis.errors import InputError, explain_os_errors

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dordis.pipeline.planner import PipelinePlan, Schedule, Slot
    from dordis.simulation.profiling import Hardware, MeasuredProfile
    from dordis.simulation.run import SimulatedJob


AUTO = "auto"

Dropout = Annotated[float | None, typer.Option(help="The largest share of a round's clients that may drop out.")]
Tolerance = Annotated[int | None, typer.Option(help="Clients of a round that may drop out, instead of --dropout.")]


def plan_noise(
    clients: Annotated[int, typer.Option(help="How many clients there are.")],
    per_round: Annotated[int, typer.Option(help="How many clients take part in a round.")],
    rounds: Annotated[int, typer.Option(help="How many rounds there are.")],
    dim: Annotated[int, typer.Option(help="How many coordinates an update has.")],
    epsilon: Annotated[float | None, typer.Option(help="The budget: find the least noise for it.")] = None,
    sigma: Annotated[
        float | None,
        typer.Option(help="Standard deviation of the noise on the sum, before scaling to integers: find epsilon."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta; min(N^-1.1, 1e-5) for N clients if not given. The paper has 1/N.")
    ] = None,
    clip: Annotated[float, typer.Option(help="The largest norm of an update.")] = 1.0,
    clip_share: Annotated[
        float, typer.Option(help="Share of the budget for a clip bound that follows a quantile; 0: the bound is fixed.")
    ] = 0.0,
    bits: Annotated[str, typer.Option(help="Bits of a coordinate; auto: the fewest without loss.")] = AUTO,
    projection: Annotated[
        str, typer.Option(help="Number of coordinates to which updates are folded: a number, auto, adaptive or off.")
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
    """Choose neighbours and thresholds of a SecAgg+ round.

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
    from dordis.pipeline import planner

    profiled, chunks = read_profile(profile), chunk_counts(dim)
    model, resources = profiled.model, profiled.resources
    schedules = {
        m: planner.schedule_stages(resources, model.stage_seconds(dim, m), m, model.setup.seconds(m)) for m in chunks
    }
    best = planner.plan_chunks(resources, lambda m: model.stage_seconds(dim, m), model.setup.seconds, chunks)
    print_result(
        as_json,
        _pipeline_fields(profiled, dim, best, schedules),
        _schedule_table(profiled, dim, best, schedules),
        f"Critical path: {describe_critical_path(best.schedule)}.",
        best.explain(),
        f"The fitted model is off by at most {model.error:.1%} in any stage.",
    )


def _check_one_tolerance(dropout: float | None, tolerance: int | None) -> None:
    if dropout is not None and tolerance is not None:
        raise InputError("give --dropout or --tolerance, not both")


def _read_projection(text: str) -> str | int:
    """Return the value of --projection: a number of coordinates, or one of `auto`, `adaptive` and `off`."""
    if text in (AUTO, "adaptive", "off"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--projection takes a number, '{AUTO}', 'adaptive' or 'off', not '{text}'")
    return int(text)


def _read_bits(text: str) -> int | None:
    if text == AUTO:
        return None
    if not text.isdecimal():
        raise InputError(f"--bits takes a number or '{AUTO}', not '{text}'")
    return int(text)


def _format_log(logarithm: float) -> str:
    return "never" if logarithm == -math.inf else f"{logarithm:.1f}"


def chunk_counts(dim: int) -> range:
    """Return the numbers of chunks to compare, from 1 to the largest possible.

    A chunk has at least one block, which is a part of an update that is rotated as a whole.
    """
    from dordis.pipeline.performance_model import most_chunks
    from dordis.privacy.scaling import block_size, padded_length

    return range(1, most_chunks(padded_length(dim, block_size(dim)) // block_size(dim)) + 1)


def _schedule_table(
    profiled: "MeasuredProfile", dim: int, best: "PipelinePlan", schedules: "dict[int, Schedule]"
) -> "Table":
    """Return a table with a row for each number of chunks.

    A row has the seconds of a round, and the share of the time after the set-up in which each resource is busy.  The
    row of the plan `best` is marked.
    """
    from rich.table import Table

    resources = list(dict.fromkeys(profiled.resources))
    busy = [f"{resource.value} busy" for resource in resources]
    title = f"a round of {profiled.clients} clients and {dim} coordinates"
    table = Table("chunks", "seconds", "times as fast", "set-up", *busy, title=title)
    plain = schedules[1].completion
    for m, schedule in schedules.items():
        used = schedule.utilisation()
        table.add_row(
            f"{m} (best)" if m == best.chunks else str(m),
            f"{schedule.completion:.4g}",
            f"{plain / schedule.completion:.2f}" if schedule.completion else "",
            f"{schedule.setup:.3g}",
            *(f"{used[resource]:.0%}" for resource in resources),
            style="bold" if m == best.chunks else None,
        )
    return table


def describe_critical_path(schedule: "Schedule") -> str:
    """Return in words a schedule's critical path: the stages in order, each with the number of chunks on the path.

    >>> from dordis.pipeline.planner import schedule_stages
    >>> from dordis.protocol import Resource
    >>> describe_critical_path(schedule_stages([Resource.CLIENT, Resource.SERVER], (1.0, 2.0), m=3))
    'set-up 0 s, stage 1 (c-comp) 1 s, stage 2 (s-comp) 3 x 2 s'
    """
    parts = [f"set-up {schedule.setup:.3g} s"]
    for stage, slots in groupby(schedule.critical, lambda slot: slot.stage):
        parts.append(_describe_slots(stage, list(slots)))
    return ", ".join(parts)


def _describe_slots(stage: int, slots: "list[Slot]") -> str:
    times = f"{len(slots)} x " if len(slots) > 1 else ""
    return f"stage {stage + 1} ({slots[0].resource.value}) {times}{slots[0].end - slots[0].start:.3g} s"


def _pipeline_fields(
    profiled: "MeasuredProfile", dim: int, best: "PipelinePlan", schedules: "dict[int, Schedule]"
) -> dict[str, object]:
    return {
        "dim": dim,
        "clients": profiled.clients,
        "chunks": best.chunks,
        "seconds": best.schedule.completion,
        "speedup": best.speedup,
        "completions": {str(m): seconds for m, seconds in best.completions.items()},
        "setup": best.schedule.setup,
        "stage_seconds": profiled.model.stage_seconds(dim, best.chunks),
        "resources": [resource.value for resource in profiled.resources],
        "critical": [
            {"stage": slot.stage, "chunk": slot.chunk, "start": slot.start, "end": slot.end}
            for slot in best.schedule.critical
        ],
        "utilisation": {resource.value: share for resource, share in best.utilisation.items()},
        "utilisation_plain": {resource.value: share for resource, share in schedules[1].utilisation().items()},
        "bottleneck": best.bottleneck.value,
        "fit_error": profiled.model.error,
        "explanation": best.explain(),
    }


PROFILE = Path("profile.json")
"""File that `dordis profile` writes if neither --output nor --json is given."""
NANO, MILLI = 1e9, 1e3


def profile(
    config: ConfigFile = None,
    preset: Preset = None,
    setting: Overrides = None,
    bandwidth: Annotated[float, typer.Option(help="Bandwidth of the slowest client, in Mbps.")] = 21.0,
    slowness: Annotated[float, typer.Option(help="How many times slower than this machine the slowest client is.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; profile.json if not given, none with --json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time the stages of a round, for `dordis plan pipeline`.

    Small rounds of the configured protocol are timed, with updates of zeros.
    """
    import msgspec

    from dordis.config import reading
    from dordis.simulation.profiling import Hardware
    from dordis.simulation.run import prepare

    reading.add_module_folders(config)
    job = prepare(reading.read_config(config, preset, setting or ()))
    console = make_console(stderr=as_json)
    timed = _time_stages(job, Hardware(bandwidth, slowness), console)
    if as_json:
        print(msgspec.json.encode(timed).decode())
    if output is None and as_json:
        return
    target = output or PROFILE
    write_profile(target, timed)
    if not as_json:
        console.print(_model_table(timed))
        console.print(f"written to {target}; continue with: dordis plan pipeline --profile {target} --dim D")


def _time_stages(job: "SimulatedJob", hardware: "Hardware", console: "Console") -> "MeasuredProfile":
    """Time the stages of a job in small rounds, and return its profile; show on a terminal which round is timed."""
    from dordis.simulation import profiling

    if not console.is_terminal:
        return profiling.profile(job, hardware)
    with console.status("profiling") as status:
        return profiling.profile(job, hardware, progress=lambda stage: status.update(f"profiling: {stage}"))


def write_profile(path: Path, timed: "MeasuredProfile") -> None:
    """Write a profile as JSON."""
    import msgspec

    with explain_os_errors(f"write the profile {path}"):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(timed), indent=1) + b"\n")


def read_profile(path: Path) -> "MeasuredProfile":
    """Return the profile in a file; raise InputError if the file cannot be read or has no profile."""
    import msgspec

    from dordis.simulation.profiling import MeasuredProfile

    try:
        with explain_os_errors(f"read the profile {path}"):
            return msgspec.json.decode(path.read_bytes(), type=MeasuredProfile)
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a profile of 'dordis profile': {error}") from None


def _model_table(timed: "MeasuredProfile") -> "Table":
    """Return a table of the fitted coefficients b1, b2, b3 of every stage, and the error of the fit.

    A stage takes b1 d/m + b2 m + b3 seconds for one chunk of an update of d coordinates in m chunks.
    """
    setting = f"{timed.clients} clients, {timed.protocol}, {timed.mode}, {timed.noise}, {timed.bits} bits"
    rows = [
        (
            str(s + 1),
            timed.resources[s].value,
            ", ".join(step.replace("_", " ") for step in timed.steps[s]),
            f"{model.partition * NANO:.3g}",
            f"{model.intervention * MILLI:.3g}",
            f"{model.constant * MILLI:.3g}",
            f"{model.error:.1%}",
        )
        for s, model in enumerate(timed.model.stages)
    ]
    setup = timed.model.setup
    costs = (f"{setup.per_chunk * MILLI:.3g}", f"{setup.constant * MILLI:.3g}", f"{setup.error:.1%}")
    hardware = timed.hardware
    devices = f"the slowest client: {hardware.bandwidth:g} Mbps, {hardware.slowness:g} times as slow as this machine; "
    return make_table(
        *("stage", "resource", "steps", "b1, ns / coordinate", "b2, ms / chunk", "b3, ms", "error"),
        rows=[*rows, ("set-up", "", "once a round", "", *costs)],
        title=f"seconds of a stage for one chunk: {setting}",
        caption=devices + "error: mean relative deviation of the model from the measured medians",
    )


TOP_LEVEL = (profile,)
COMMANDS = {"noise": plan_noise, "graph": plan_graph, "pipeline": plan_pipeline}
DEFAULT = "noise"
HELP = """Plan noise, the graph of SecAgg+, or the number of chunks.

Without a command, dordis plan is dordis plan noise.
"""
