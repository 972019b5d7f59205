"""Time the stages of a configured run on small rounds of zeros, and write down the model of how long they take."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from dordis.cli import config as reading
from dordis.cli.run import find_modules
from dordis.errors import InputError
from dordis.federation.round import Watch, silent
from dordis.simulation import profiling
from dordis.simulation.job import Job, prepare
from dordis.simulation.profiling import Hardware, Profiled

DEFAULT = Path("profile.json")
NANO, MILLI = 1e9, 1e3


def profile(
    path: Path | None, preset: str | None, keys: Sequence[str], hardware: Hardware, output: Path | None, as_json: bool
) -> None:
    """Profile a configuration; write the file that `dordis plan --pipeline` reads."""
    find_modules(path)
    job = prepare(reading.read(path, preset, keys))
    console = Console(stderr=as_json, soft_wrap=True, markup=False)
    found = _timed(job, hardware, console)
    if as_json:
        print(msgspec.json.encode(found).decode())
    if output is None and as_json:
        return
    target = output or DEFAULT
    write(target, found)
    if not as_json:
        console.print(table(found))
        console.print(f"written to {target}; go on with: dordis plan --pipeline --profile {target} --dim D")


def _timed(job: Job, hardware: Hardware, console: Console) -> Profiled:
    """Time the rounds, and tell on a terminal which one is under way."""
    if not console.is_terminal:
        return profiling.profile(job, hardware, watch=silent)
    with console.status("profiling") as status:
        watch: Watch = lambda what: status.update(f"profiling: {what}")  # noqa: E731
        return profiling.profile(job, hardware, watch=watch)


def write(path: Path, found: Profiled) -> None:
    """Write a profile as JSON."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"cannot write the profile {path}: {error.strerror}") from None


def read(path: Path) -> Profiled:
    """Read a profile."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profiled)
    except OSError as error:
        raise InputError(f"cannot read the profile {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a profile of 'dordis profile': {error}") from None


def table(found: Profiled) -> Table:
    """Show the model: tau = b1 d/m + b2 m + b3 for every stage, and how well it fits."""
    setting = f"{found.clients} clients, {found.protocol}, {found.mode}, {found.noise}, {found.bits} bits"
    title = f"seconds of a stage for one chunk: {setting}"
    shape = Table("stage", "resource", "steps", "b1, ns / coordinate", "b2, ms / chunk", "b3, ms", "error", title=title)
    for s, model in enumerate(found.model.stages):
        shape.add_row(
            str(s + 1),
            found.resources[s].value,
            ", ".join(step.replace("_", " ") for step in found.steps[s]),
            f"{model.partition * NANO:.3g}",
            f"{model.intervention * MILLI:.3g}",
            f"{model.constant * MILLI:.3g}",
            f"{model.error:.1%}",
        )
    setup = found.model.setup
    costs = (f"{setup.per_chunk * MILLI:.3g}", f"{setup.constant * MILLI:.3g}", f"{setup.error:.1%}")
    shape.add_row("set-up", "", "once a round", "", *costs)
    hardware = found.hardware
    devices = f"the slowest client: {hardware.bandwidth:g} Mbps, {hardware.slowness:g} times as slow as this machine; "
    shape.caption = devices + "error: mean relative deviation of the model from the medians that it was fitted to"
    return shape
