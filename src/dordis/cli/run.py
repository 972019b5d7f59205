"""Train a model, or compute anything else that is a mean, over simulated clients, as a configuration says."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomli_w
from rich.console import Console

from dordis.cli import config as reading
from dordis.cli.run_display import Display, summary, upcoming
from dordis.errors import BudgetExceeded, InputError, RoundFailed
from dordis.federation.records import CONFIG, Result
from dordis.kernels.packing import packed_size
from dordis.simulation.config import Config
from dordis.simulation.job import Job, Run, prepare
from dordis.simulation.rehearsal import rehearse


def run(
    path: Path | None, preset: str | None, keys: Sequence[str], resume: Path | None, dry: bool, as_json: bool
) -> None:
    """Prepare a run, then do what is asked: tell what it would be, run it, or go on with it."""
    if resume is not None:
        if path is not None or preset is not None or keys or dry:
            raise InputError("a run goes on as it was configured: give --resume alone")
        path = resume / CONFIG
        if not path.is_file():
            raise InputError(f"there is no run at {resume}: it has no {CONFIG}")
    find_modules(path)
    config = reading.read(path, preset, keys)
    console = Console(stderr=as_json, soft_wrap=True, markup=False)
    with console.status("planning the noise") if console.is_terminal else _Quiet():
        job = prepare(config)
    if dry:
        _tell(job, console, as_json)
        return
    under_way = Run.resume(job, resume) if resume else Run.start(job, Path(config.output), toml(config))
    result = _drive(under_way, console, as_json)
    _show(under_way, result, console, as_json)


def _drive(under_way: Run, console: Console, as_json: bool) -> Result:
    """Run all rounds that are left, showing them; whatever ends the run is written down."""
    stopped = "rounds"
    with Display(under_way.job, under_way.done, console, quiet=as_json) as display:
        try:
            for finished in under_way.rounds(display.stage):
                display.finished(finished)
        except BudgetExceeded as error:
            stopped = "budget"
            display.note(f"stopped before round {under_way.done + 1}: {error}")
        except RoundFailed as error:
            under_way.close("failed")
            raise InputError(_failed(under_way, error)) from None
        except KeyboardInterrupt:
            under_way.close("interrupted")
            console.print(f"interrupted; go on with: dordis run --resume {under_way.records.path}")
            sys.exit(130)
    return under_way.close(stopped)


def _failed(under_way: Run, error: RoundFailed) -> str:
    """Say which round failed, how often, why, and what can be done."""
    federation = under_way.job.config.federation
    times = "once" if federation.tries == 1 else f"{federation.tries} times"
    return (
        f"round {under_way.done + 1} of {federation.rounds} failed {times} (federation.tries), the last time because "
        f"{error}: begin a run that allows for more dropout with protocol.threshold and protocol.tolerance, or has "
        f"more clients a round; what was done is in {under_way.records.path}"
    )


def _show(under_way: Run, result: Result, console: Console, as_json: bool) -> None:
    from dordis.report.files import write

    report = write([under_way.records.path])
    if as_json:
        metrics = {"accuracy": result.metrics.get("accuracy")} | result.metrics
        told = {
            **metrics,
            "epsilon": result.epsilon,
            "delta": result.delta,
            "rounds": result.rounds,
            "seconds": round(result.seconds, 3),
            "fidelity": result.fidelity,
            "stopped": result.stopped,
            "path": str(under_way.records.path),
        }
        print(json.dumps(told))
        return
    console.print(summary(under_way, result))
    console.print(f"report: {report}")


def _tell(job: Job, console: Console, as_json: bool) -> None:
    """Tell what a run would be: its plan, and the bytes and seconds of a rehearsed round."""
    rehearsed, design = rehearse(job), job.design
    grid, setting = design.mechanism.grid, design.setting
    rounds = job.config.federation.rounds
    told: dict[str, float | int | str | None] = {
        "epsilon": None if not design.proves else design.plan.epsilon if design.plan else design.epsilon,
        "delta": design.delta,
        "rounds_of_a_client": design.cap,
        "coordinates": setting.dim,
        "bits": grid.bits,
        "sigma": design.sigma,
        "threshold": setting.t,
        "tolerance": setting.T,
        "colluders": setting.colluders,
        "bytes_of_an_update": packed_size(grid.padded, grid.bits),
        "bytes_up": rehearsed.up,
        "bytes_down": rehearsed.down,
        "seconds_of_a_round": rehearsed.seconds,
        "seconds": rehearsed.seconds * rounds,
        "fidelity": job.config.simulation.fidelity,
    }
    if as_json:
        print(json.dumps(told))
    else:
        console.print(upcoming(job, told))


def toml(config: Config) -> str:
    """Write a configuration as TOML, every key said; what is not set is left out."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(config)))


def _without_none(settings: dict[str, object]) -> dict[str, object]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


def find_modules(path: Path | None) -> None:
    """Let a configuration name modules beside it, or in the current folder."""
    for folder in (Path.cwd(), *([path.resolve().parent] if path else [])):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


class _Quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
