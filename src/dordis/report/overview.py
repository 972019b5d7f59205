"""One page for all runs in a folder: what each came to, and where its report is."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from dordis.errors import InputError
from dordis.federation import records
from dordis.federation.records import MANIFEST, StoredRun
from dordis.report.facts import Facts, checked
from dordis.report.figures import in_order
from dordis.report.naming import labels
from dordis.report.numbers import count, duration, number, percent
from dordis.report.page import filled
from dordis.report.svg import escaped

HEAD = ("begun, UTC", "result", "epsilon", "rounds", "dropout", "took", "run as")


def runs_in(folder: Path) -> list[Path]:
    """Return the directories of runs in a folder, at whatever depth, the newest first."""
    found = [path.parent for path in folder.rglob(MANIFEST)]
    return sorted(found, key=lambda path: (path.name, str(path)), reverse=True)


def overview(folder: Path, paths: Sequence[Path], report: str, home: Path) -> str:
    """Write the page of all runs in a folder, to be kept in `home`; a run that cannot be read is listed with why."""
    runs: list[StoredRun] = []
    unread: dict[Path, str] = {}
    for path in paths:
        try:
            runs.append(records.load(path))
        except InputError as error:
            unread[path] = str(error)
    rows = [_row(home, Facts(run, label, checked(run)), report) for run, label in _named(runs)]
    rows += [f'<tr><td>{escaped(str(path))}</td><td colspan="{len(HEAD)}">{escaped(why)}</td></tr>'
             for path, why in unread.items()]  # fmt: skip
    head = "".join(f"<th scope=col>{name}</th>" for name in ("run", *HEAD))
    title = f"{count(len(paths), 'run')} in {folder.resolve().name}"
    body = (
        f'<p class="kicker">dordis</p><h1>{escaped(title)}</h1>'
        '<p class="about">The newest first. Runs of one name are told apart by what differs in their configurations. '
        "To compare some of them: dordis report RUN RUN.</p>"
        f'<div class="scroll"><table class="overview"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    return filled(title, body, [run.manifest.version for run in runs])


def _named(runs: Sequence[StoredRun]) -> list[tuple[StoredRun, str]]:
    """Name runs among those of their name."""
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        groups.setdefault(run.manifest.name, []).append(run)
    named = {run.path: label for group in groups.values() for run, label in zip(group, labels(group), strict=True)}
    return [(run, named[run.path]) for run in runs]


def _row(home: Path, facts: Facts, report: str) -> str:
    """Write what a run came to, with a link to its page if there is one."""
    run, manifest = facts.run, facts.run.manifest
    name = manifest.name if facts.label.startswith(manifest.name) else f"{manifest.name}: {facts.label}"
    page = run.path / report
    link = quote(os.path.relpath(page, home))
    shown = f'<a href="{link}">{escaped(name)}</a>' if page.is_file() else escaped(name)
    measured = sorted(facts.last_metrics.items(), key=lambda item: in_order(item[0]))[:1]
    spent = f"{number(facts.spent)} of {number(facts.budget)} spent" + (", OVERSPENT" if facts.overspent else "")
    stated = f"{number(facts.stated)}; {spent}" if facts.trust.proves else "nothing is proved"
    cells = (
        manifest.created[:19].replace("T", " "),
        ", ".join(f"{metric} {number(value)}" for metric, value in measured),
        "ledger does not verify" if facts.ledger.problem else stated,
        f"{facts.done} of {manifest.rounds}" + ("" if run.result else ", no result"),
        percent(facts.dropout),
        duration(facts.seconds),
        f"simulation, {manifest.fidelity}" if facts.trust.simulated else manifest.fidelity,
    )
    return f"<tr><td>{shown}</td>{''.join(f'<td>{escaped(cell)}</td>' for cell in cells)}</tr>"
