"""`dordis report` writes a report of runs; `dordis status` shows the state of runs on a server, or of a client.

A folder of configurations that `dordis serve` runs one after the other is called a queue.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dordis.cli.options import Json, recorded_runs
from dordis.cli.output import facts_table, finite, make_table, print_result, show_progress
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.report.facts import RunFacts


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Directories of runs, which are compared, or a folder of runs, which is indexed; runs/ if not given.",
            autocompletion=recorded_runs,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The directory to write into; the run's if not given, for several runs the current one."),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every chart as SVG and the tables as CSV.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Write the results and the privacy of runs as one HTML page."""
    import webbrowser

    from dordis.records.run_records import MANIFEST
    from dordis.report.page import write_overview, write_report

    if output is not None and output.suffix == ".html":
        raise InputError(f"--output takes a directory, into which report.html is written, not the file {output}")
    paths = runs or [Path("runs")]
    with show_progress("reading runs, and verifying their ledgers"):
        if len(paths) == 1 and paths[0].is_dir() and not (paths[0] / MANIFEST).exists():
            path = write_overview(paths[0], output)
        else:
            path = write_report(paths, output, with_figures=figures)
    print_result(as_json, {"report": str(path)}, str(path))
    if show and not webbrowser.open(path.resolve().as_uri()):
        print("cannot open the report: there is no browser", file=sys.stderr)


def status(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FOLDER|NAME.key",
            help="A run, a folder of runs or of queued configurations; or the key file of a client.",
        ),
    ],
    state: Annotated[
        Path | None, typer.Option(help="The client's state; NAME.state beside the key file if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the state of runs on a server, or of a client.

    For runs: rounds, failed tries, clients and privacy. For a client: rounds, privacy, certificate and the last error.
    Nothing is written; the command can be used during a run.
    """
    if path.suffix == ".key":
        client = read_client_status(path, state)
        print_result(as_json, client, facts_table({name: _shown(value) for name, value in client.items()}))
        return
    if not path.is_dir():
        raise InputError(f"there is no directory {path}: give a run, a folder of runs, or a client's .key file")
    runs = [read_run_status(found) for found in find_runs(path)]
    queued = read_queue(path)
    if not runs and not queued:
        raise InputError(f"there is no run in {path}: give the directory of a run, or a folder of runs")
    heads = ("run", "state", "rounds", "failed tries", "clients", "epsilon", "last round")
    rows = [
        [
            _shown(run[head])
            for head in ("name", "state", "progress", "failed_tries", "connections", "privacy", "last_round")
        ]
        for run in runs
    ]
    parts = [make_table(*heads, rows=rows)] if runs else []
    if late := list_missed_deadlines(runs):
        parts.append(make_table("run", "client", "missed deadlines", "at", rows=late))
    parts += [make_table("configuration", "state", rows=queued.items())] if queued else []
    print_result(as_json, {"runs": runs, "queue": queued}, *parts)


def list_missed_deadlines(runs: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each client that missed deadlines: run, client id, number in all and by kind of request."""
    return [
        [
            run["name"],
            str(client),
            str(sum(stages.values())),
            ", ".join(f"{at} {count}" for at, count in stages.items()),
        ]
        for run in runs
        for client, stages in run["missed_deadlines"].items()
    ]


def find_runs(path: Path) -> list[Path]:
    """Return the directories of runs, oldest first: `path` itself if it is a run, else the runs in this folder.

    If the folder is a queue, the runs of its configurations are included.
    """
    from dordis.records.run_records import MANIFEST
    from dordis.records.server_status import QUEUE, RunQueue

    if (path / MANIFEST).exists():
        return [path]
    found = {file.parent.resolve() for depth in ("*", "*/*") for file in path.glob(f"{depth}/{MANIFEST}")}
    if (path / QUEUE).exists():
        found |= {Path(entry.run) for entry in RunQueue(path).entries().values() if entry is not None}
    return sorted((run for run in found if (run / MANIFEST).exists()), key=lambda run: run.name)


def read_queue(path: Path) -> dict[str, str]:
    """Return `waits`, `begun` or `done` for each configuration in a queue; empty if the folder is no queue."""
    from dordis.records.server_status import QUEUE, RunQueue

    if not (path / QUEUE).exists():
        return {}
    states = {None: "waits", True: "done", False: "begun"}
    return {name: states[None if entry is None else entry.over] for name, entry in RunQueue(path).entries().items()}


def read_run_status(path: Path) -> dict[str, Any]:
    """Return the state of a run as JSON fields, from its files: rounds, clients, epsilon."""
    from dordis.durable_files import lock_holder
    from dordis.records.server_status import read_connected
    from dordis.report.facts import read_facts

    (facts,) = read_facts([path])
    run, pid = facts.run, lock_holder(path)
    noted = read_connected(path)
    connected = noted.clients if pid else ()
    return {
        "name": run.manifest.name,
        "path": str(path),
        "state": f"running (process {pid})" if pid else _describe_end(facts),
        "running": bool(pid),
        "rounds": run.finished,
        "planned_rounds": run.manifest.rounds,
        "progress": f"{run.finished} of {run.manifest.rounds}",
        "failed_tries": len(run.failures),
        "members": run.manifest.clients,
        "connected": list(connected),
        "connections": f"{len(connected)} of {run.manifest.clients} connected",
        "evicted": list(run.evicted),
        "missed_deadlines": {int(u): stages for u, stages in sorted(noted.missed.items())},
        "epsilon_spent": finite(facts.spent),
        "budget": finite(facts.budget),
        "privacy": "not stated" if facts.spent is None else f"{facts.spent:.4g} of {_shown(facts.budget)}",
        "last_round": run.rounds[-1].started[:19] + "Z" if run.rounds else None,
    }


def _describe_end(facts: "RunFacts") -> str:
    result = facts.run.result
    if result is None:
        return "stopped, can be resumed"
    words = {
        "rounds": "over",
        "budget": "over: the budget is spent",
        "failed": "failed, can be resumed unless diverged",
    }
    return words.get(result.stopped, f"{result.stopped}, can be resumed")


def read_client_status(key: Path, state: Path | None) -> dict[str, Any]:
    """Return the state of a client as JSON fields: rounds, epsilon, certificate, last training and error."""
    from dordis.identity.certificates import certified_client, days_left
    from dordis.identity.keys import CERTIFICATE, read_certificates
    from dordis.network.authentication import utc_now
    from dordis.owner.directory import ClientDirectory, default_state
    from dordis.owner.participation import OwnerBudget

    certificate, _ = read_certificates(key.with_suffix(CERTIFICATE))
    bound = certified_client(certificate)
    if bound is None:
        raise InputError(f"{key} is a server's: give a client's key file, or the directory of a run")
    folder = default_state(key) if state is None else state
    if not folder.is_dir():
        raise InputError(f"there is no {folder}: this client has not joined yet, or its state is elsewhere (--state)")
    directory = ClientDirectory(folder)
    counted, noted = directory.participation(), directory.status.read()
    spent = None
    if noted.epsilon is not None and noted.delta is not None:
        spent = OwnerBudget(noted.epsilon, noted.delta).epsilon_spent(counted.spent(), counted.plans())
    return {
        "client": int(bound.client),
        "server": noted.server or None,
        "rounds": counted.count(),
        "epsilon_spent": finite(spent),
        "epsilon_allowed": noted.epsilon,
        "delta": noted.delta,
        "certificate_days": days_left(certificate, utc_now()),
        "last_contact": noted.last_contact or None,
        "last_training": noted.last or None,
        "zero_updates": noted.zero_updates,
        "last_error": noted.problem or (f"an update was zero at {noted.last_error}" if noted.last_error else None),
    }


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


TOP_LEVEL = (report, status)
