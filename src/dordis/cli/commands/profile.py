"""Time the stages of a configured run on small rounds of zeros, and write down the model of how long they take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli import tables
from dordis.cli.options import ConfigFile, Json, Overrides, Preset
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dordis.simulation.profiling import Hardware, Profiled
    from dordis.simulation.run import SimulatedJob

DEFAULT = Path("profile.json")
NANO, MILLI = 1e9, 1e3


def profile(
    config: ConfigFile = None,
    preset: Preset = None,
    setting: Overrides = None,
    bandwidth: Annotated[float, typer.Option(help="Mbps of the slowest client's link.")] = 21.0,
    slowness: Annotated[float, typer.Option(help="How many times slower than this machine the slowest client is.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Where to write: profile.json if not given, nothing with --json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time the stages of a round, for plan --pipeline.

    What is timed are small rounds of zeros, as the configuration has them.
    """
    import msgspec

    from dordis.simulation import reading
    from dordis.simulation.profiling import Hardware
    from dordis.simulation.run import prepare

    reading.find_modules(config)
    job = prepare(reading.read(config, preset, setting or ()))
    console = tables.console(stderr=as_json)
    timed = _timed(job, Hardware(bandwidth, slowness), console)
    if as_json:
        print(msgspec.json.encode(timed).decode())
    if output is None and as_json:
        return
    target = output or DEFAULT
    write(target, timed)
    if not as_json:
        console.print(table(timed))
        console.print(f"written to {target}; go on with: dordis plan --pipeline --profile {target} --dim D")


def _timed(job: "SimulatedJob", hardware: "Hardware", console: "Console") -> "Profiled":
    """Time the rounds, and tell on a terminal which one is under way."""
    from dordis.rounds.server import silent
    from dordis.simulation import profiling

    if not console.is_terminal:
        return profiling.profile(job, hardware, watch=silent)
    with console.status("profiling") as status:
        return profiling.profile(job, hardware, watch=lambda what: status.update(f"profiling: {what}"))


def write(path: Path, timed: "Profiled") -> None:
    """Write a profile as JSON."""
    import msgspec

    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(timed), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"cannot write the profile {path}: {error.strerror}") from None


def read(path: Path) -> "Profiled":
    """Read a profile."""
    import msgspec

    from dordis.simulation.profiling import Profiled

    try:
        return msgspec.json.decode(path.read_bytes(), type=Profiled)
    except OSError as error:
        raise InputError(f"cannot read the profile {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a profile of 'dordis profile': {error}") from None


def table(timed: "Profiled") -> "Table":
    """Show the model: tau = b1 d/m + b2 m + b3 for every stage, and how well it fits."""
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
    return tables.table(
        *("stage", "resource", "steps", "b1, ns / coordinate", "b2, ms / chunk", "b3, ms", "error"),
        rows=[*rows, ("set-up", "", "once a round", "", *costs)],
        title=f"seconds of a stage for one chunk: {setting}",
        caption=devices + "error: mean relative deviation of the model from the medians that it was fitted to",
    )
