"""Time the stages of small rounds whose updates are zeros, and write the model of round times fitted to them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import ConfigFile, Json, Overrides, Preset
from dordis.cli.output import make_console, make_table
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dordis.simulation.profiling import Hardware, MeasuredProfile
    from dordis.simulation.run import SimulatedJob

DEFAULT = Path("profile.json")
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
    target = output or DEFAULT
    write_profile(target, timed)
    if not as_json:
        console.print(_model_table(timed))
        console.print(f"written to {target}; continue with: dordis plan pipeline --profile {target} --dim D")


def _time_stages(job: "SimulatedJob", hardware: "Hardware", console: "Console") -> "MeasuredProfile":
    """Return the profile of a job, measured in small rounds; a terminal shows which round is timed."""
    from dordis.simulation import profiling

    if not console.is_terminal:
        return profiling.profile(job, hardware)
    with console.status("profiling") as status:
        return profiling.profile(job, hardware, progress=lambda stage: status.update(f"profiling: {stage}"))


def write_profile(path: Path, timed: "MeasuredProfile") -> None:
    """Write a profile as JSON."""
    import msgspec

    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(timed), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"cannot write the profile {path}: {error.strerror}") from None


def read_profile(path: Path) -> "MeasuredProfile":
    """Read a profile from a file; raise InputError if it is no profile."""
    import msgspec

    from dordis.simulation.profiling import MeasuredProfile

    try:
        return msgspec.json.decode(path.read_bytes(), type=MeasuredProfile)
    except OSError as error:
        raise InputError(f"cannot read the profile {path}: {error.strerror}") from None
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
