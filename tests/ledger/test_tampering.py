"""Whoever writes to the directory of a run, its manifest left alone, lowers nothing that a command or a page states."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dordis
from dordis.config.reading import config_to_toml
from dordis.errors import DordisError
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.ledger import ledger
from dordis.ledger.combine_runs import combined_epsilon
from dordis.ledger.entries import ChunkOutcome, Completed, Entry, Refused, Reserved, encode_entry
from dordis.ledger.ledger import Budget, Ledger
from dordis.ledger.round_charge import Charge, GaussianTerm, Price, counted_variance
from dordis.ledger.stated_epsilon import Basis
from dordis.privacy.accounting import Gaussian
from dordis.privacy.xnoise_components import removal_context
from dordis.protocols.parameters import INDEX_BYTES
from dordis.records import run_records
from dordis.records.run_records import (
    CONFIG,
    EVICTIONS,
    LEDGER,
    METRICS,
    MODEL,
    RECEIPTS,
    REGISTRY,
    RESULT,
    ROUNDS,
    load_run,
)
from dordis.report import tables
from dordis.report.facts import read_facts
from dordis.report.page import write_overview, write_report
from dordis.simulation.run import prepare
from tests.case_samples import sample_cases
from tests.cli.in_process import dordis as command
from tests.ledger.charged_rounds import forge
from tests.simulation.toys import Server
from tests.simulation.whole_runs import settings_of

KEYS = ("simulation.fidelity=ideal", "federation.clients=6", "federation.per_round=6", "app.options.dim=4")
KINDS = ("finished", "interrupted", "failed", "successor")
CLOSE = 1e-9
Entries = list[dict[str, Any]]


@lru_cache
def planned(*keys: str):
    return prepare(settings_of(*KEYS, *keys))


def job_of(*keys: str):
    job = planned(*keys)
    return replace(job, job=replace(job.job, app=Server(job.job.app.dim)))


def run_of(root: Path, rounds: int, *keys: str, before: Path | None = None, stopped: str = "interrupted") -> Path:
    """Run some rounds, and end there: as planned, or not."""
    job = job_of(*keys)
    text = config_to_toml(job.config)
    run = job.start(root, text) if before is None else job.succeed(before, root, text)
    going = run.rounds()
    for _ in range(rounds):
        next(going)
    run.close("rounds" if run.done == run.job.config.federation.rounds else stopped)
    return run.records.path


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return runs of every kind, and one that cost little, which no test may change."""
    root = tmp_path_factory.mktemp("runs")
    first = run_of(root, 1, "privacy.epsilon=20", "federation.rounds=4")
    return {
        "finished": run_of(root, 3, "privacy.noise.kind=conservative", "federation.rounds=3"),
        "interrupted": run_of(root, 2, "federation.rounds=4"),
        "failed": run_of(root, 2, "federation.rounds=4", stopped="failed"),
        "successor": run_of(root, 2, "privacy.epsilon=16", "federation.rounds=3", before=first),
        "first": first,
        "cheap": run_of(root, 3, "privacy.epsilon=0.5", "federation.rounds=3"),
    }


@dataclass(frozen=True)
class Place:
    """A run that is tampered with, beside a run of the same clients that cost little."""

    path: Path
    cheap: Path

    def lines(self, name: str) -> list[Any]:
        """Return the lines of a file, read."""
        return [json.loads(line) for line in (self.path / name).read_bytes().splitlines()]

    def write(self, name: str, lines: list[Any]) -> None:
        """Write lines in place of those of a file."""
        (self.path / name).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def forge(self, change: Callable[[Entries], object]) -> None:
        """Change the ledger, with all hashes right."""
        forge(self.path / LEDGER, change)

    def take(self, name: str) -> None:
        """Take a file or directory of the cheap run."""
        self.remove(name)
        source = self.cheap / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file or a directory."""
        target = self.path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)

    def receipts(self) -> list[Path]:
        """Return the receipts in order."""
        return sorted((self.path / RECEIPTS).glob("*.json"))


Way = Callable[[Place], object]
WAYS: dict[str, Way] = {}


def way(function: Way) -> Way:
    """Enter a way to tamper under its name."""
    WAYS[function.__name__] = function
    return function


def result(**changes: object) -> Way:
    """Return a way that changes the result."""

    def change(place: Place) -> None:
        file = place.path / RESULT
        file.write_text(json.dumps(json.loads(file.read_bytes()) | changes))

    return change


def lines(name: str, change: Callable[[list[Any]], list[Any]]) -> Way:
    """Return a way that changes the lines of a file."""
    return lambda place: place.write(name, change(place.lines(name)))


def receipts(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Way:
    """Return a way that changes every receipt."""

    def all_of_them(place: Place) -> None:
        for file in place.receipts():
            file.write_text(json.dumps(change(json.loads(file.read_bytes()))))

    return all_of_them


def ledger_of(change: Callable[[Entries], object]) -> Way:
    """Return a way that changes the ledger, with all hashes right."""
    return lambda place: place.forge(change)


def both(*ways: Way) -> Way:
    """Return a way that does several things."""
    return lambda place: [one(place) for one in ways]


def cut(count: int) -> Way:
    """Return a way that cuts the last lines of the ledger: the chain of the others is whole."""

    def cut_lines(place: Place) -> None:
        file = place.path / LEDGER
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-count]))

    return cut_lines


def remove(*names: str) -> Way:
    """Return a way that removes files."""
    return lambda place: [place.remove(name) for name in names]


def take(*names: str) -> Way:
    """Return a way that takes files of the cheap run."""
    return lambda place: [place.take(name) for name in names]


def charges(entries: Entries) -> Entries:
    """Return all charges of a ledger."""
    return [entry["charge"] for entry in entries if "charge" in entry]


def set_charges(entries: Entries, **changes: object) -> None:
    for charge in charges(entries):
        charge.update(changes)


def scale_noise(entries: Entries, times: Fraction = Fraction(100)) -> None:
    """Raise every variance that is written down, so that all are alike."""

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            kept = ("variance", "variances", "left", "charged")
            return {k: raised(v) if k in kept else scaled(v) for k, v in value.items()}
        return [scaled(one) for one in value] if isinstance(value, list) else value

    def raised(value: Any) -> Any:
        if isinstance(value, list):
            return [raised(one) for one in value]
        return str(Fraction(value) * times)

    entries[:] = scaled(entries)


def add_rounds(entries: Entries, *, strangers: bool = False, times: int = 8) -> None:
    """Add rounds like the last one, of the same clients or of others, so that there seem to be enough."""
    reserved = next(entry for entry in reversed(entries) if entry["kind"] == "reserved")
    completed = next(entry for entry in reversed(entries) if entry["kind"] == "completed")
    for index in range(50, 50 + times):
        charge = json.loads(json.dumps(reserved["charge"])) | {"index": index}
        if strangers:
            charge["clients"] = [u + 100 for u in charge["clients"]]
        entries += [{**reserved, "charge": charge}, {**completed, "index": index}]


def add_records(rounds: list[Any], *, index: int | None = None) -> list[Any]:
    """Add records of rounds, under an index that is there or under new ones."""
    last = rounds[-1]
    added = [last | {"number": last["number"] + i, "index": 49 + i if index is None else index} for i in range(1, 9)]
    return [*rounds, *added]


def add_receipts(place: Place) -> None:
    """Add receipts of rounds that were not."""
    last = json.loads(place.receipts()[-1].read_bytes())
    for index in range(50, 58):
        made = last | {"index": index}
        (place.path / RECEIPTS / f"{index:06d}.json").write_text(json.dumps(made))


def like_first(place: Place, index: int, times: Fraction) -> Charge:
    """Return the charge of a round like the first one, with so many times its noise."""
    rounds = ledger.read_ledger(place.path / LEDGER, load_run(place.path).id)[0].rounds
    first = rounds[min(rounds)].charge
    variances = tuple(Fraction(round(variance * times * 2**20), 2**20) for variance in first.variances)
    return msgspec.structs.replace(first, index=index, variances=variances).after_dropouts({0: 0})


def append(place: Place, made: Callable[[str], Entry]) -> None:
    """Append a line that follows the last one."""
    data = (place.path / LEDGER).read_bytes()
    head = hashlib.sha256(data.splitlines(keepends=True)[-1]).hexdigest()
    (place.path / LEDGER).write_bytes(data + encode_entry(made(head)))


def refuse(times: Fraction) -> Way:
    """Return a way that adds a line which says that the budget ended the run."""

    def add(place: Place) -> None:
        charge = like_first(place, 90, times)
        append(place, lambda head: Refused(head, charge))

    return add


def refuse_cheap(change: Callable[[Charge], Charge], times: Fraction = Fraction(1)) -> Way:
    """Return a way that adds such a line, of a round that is cheap if nobody drops out, and removes the result."""

    def add(place: Place) -> None:
        charge = change(msgspec.structs.replace(like_first(place, 90, times), dropped=())).after_dropouts({})
        charge = msgspec.structs.replace(charge, dropped=())
        append(place, lambda head: Refused(head, charge))
        place.remove(RESULT)

    return add


def even_shares(charge: Charge) -> Charge:
    """Have all but two clients collude, under noise that dropout takes away."""
    colluders = len(charge.clients) - charge.tolerance - 1
    return msgspec.structs.replace(charge, scheme="orig", colluders=colluders)


def priced(charge: Charge) -> Charge:
    """Name prices: next to nothing if nobody drops out, and everything otherwise."""
    charge = msgspec.structs.replace(charge, scheme="orig")
    counts = sorted({counted_variance(charge.plans[0], dropped) for dropped in range(charge.tolerance + 1)})
    prices = tuple(Price(v, (GaussianTerm(1, Gaussian(1e6 if v == counts[-1] else 1e-3)),)) for v in counts)
    return msgspec.structs.replace(
        charge, releases=(msgspec.structs.replace(charge.releases[0], mechanism="mine", prices=prices),)
    )


def fails_often(charge: Charge) -> Charge:
    """Have the graphs fail so often that hardly any delta is left."""
    return msgspec.structs.replace(charge, failure=Fraction(f"{1e-5 * (1 - 1e-13) / (charge.index + 1):.25f}"))


def add_cheap_rounds(place: Place) -> None:
    """Add rounds to the ledger that cost next to nothing, until there are as many as planned."""
    run = load_run(place.path)
    for index in range(50, 50 + max(1, run.manifest.rounds - run.finished)):
        charge = like_first(place, index, Fraction(10**6))
        named = removal_context(run.id + index.to_bytes(INDEX_BYTES, "big"), 0, bytes.fromhex(charge.parameters))
        kept = [one(charge.clients, named) for one in (charge.plans[0].variance_left, charge.plans[0].charged_variance)]
        append(place, lambda head, charge=charge: Reserved(head, charge))
        append(place, lambda head, index=index, kept=kept: Completed(head, index, (ChunkOutcome((), *kept),)))


def record_cheap_rounds(place: Place) -> None:
    """Add receipts and records of those rounds, as they would be."""
    add_cheap_rounds(place)
    account, heads = ledger.read_ledger(place.path / LEDGER, load_run(place.path).id)
    rounds, last = place.lines(ROUNDS), json.loads(place.receipts()[-1].read_bytes())
    for index in sorted(i for i in account.rounds if i >= 50):
        made = last | {"index": index, "ledger": heads[-1]}
        (place.path / RECEIPTS / f"{index:06d}.json").write_bytes(msgspec.json.encode(made))
        epsilon = account.epsilon_after(index)
        rounds.append(rounds[-1] | {"number": rounds[-1]["number"] + 1, "index": index, "epsilon": epsilon})
    place.write(ROUNDS, rounds)


def lower_epsilon(rounds: list[Any], value: float | None = 0.01) -> list[Any]:
    return [record | {"epsilon": value} for record in rounds]


def earlier_model(place: Place) -> None:
    """Put a model back that was kept after the first round."""
    first = {name: (place.path / name).read_bytes().splitlines(keepends=True)[0] for name in (ROUNDS, METRICS)}
    run_records.write_checkpoint(place.path / MODEL, first, run_records.read_state(place.path / MODEL))


def model_that_lies(place: Place) -> None:
    """Write a lower epsilon into the model's own line, and into the records."""
    place.write(ROUNDS, lower_epsilon(place.lines(ROUNDS)))
    last = {name: (place.path / name).read_bytes().splitlines(keepends=True)[-1] for name in (ROUNDS, METRICS)}
    run_records.write_checkpoint(place.path / MODEL, last, run_records.read_state(place.path / MODEL))


def begin_ledger(place: Place, budget: Budget | None = None) -> None:
    """Begin the ledger again."""
    run = load_run(place.path)
    place.remove(LEDGER)
    Ledger.create(place.path / LEDGER, run.id, budget or Budget(run.manifest.budget, run.manifest.plan.delta))


def rename_cheap_ledger(place: Place) -> None:
    """Take the ledger of the cheap run in the name of this one, with all hashes right."""
    place.take(LEDGER)
    place.forge(lambda entries: entries[0].update(previous=load_run(place.path).id.hex()))


def drop_last_round(entries: Entries) -> None:
    """Leave out all lines of the last round."""
    last = next(entry["index"] for entry in reversed(entries) if entry["kind"] == "completed")
    entries[:] = [e for e in entries if e.get("index", e.get("charge", {}).get("index")) != last]


def without_last_round(place: Place) -> None:
    """Leave out the last round everywhere."""
    earlier_model(place)
    place.forge(drop_last_round)
    place.receipts()[-1].unlink()
    place.write(ROUNDS, place.lines(ROUNDS)[:-1])
    place.remove(RESULT)


def lose_predecessor(entries: Entries) -> None:
    """Leave out everything that was before the succession, if there was one."""
    at = [place for place, entry in enumerate(entries) if entry["kind"] == "succeeded"]
    if at:
        entries[0].update(budget=entries[at[0]]["budget"], previous=entries[at[0]]["run"])
        del entries[1 : at[0] + 1]


def strangers_registry(place: Place) -> None:
    """Put a registry of others beside the run."""
    Registry({u: Keys.generate().identity() for u in range(1, 7)}).save(place.path / REGISTRY)


def finish_ledger(place: Place) -> None:
    place.forge(partial(add_rounds, strangers=True))


def update_all(name: str, **changes: object) -> Way:
    return lines(name, lambda found: [line | changes for line in found])


for stopped in ("rounds", "budget", "failed", "interrupted", "running", ""):
    WAYS[f"the result says that {stopped or 'nothing'} stopped the run"] = result(stopped=stopped)
WAYS |= {
    "no result": remove(RESULT),
    "the result states less": result(epsilon=0.01),
    "the result says that less was spent": result(spent=0.01),
    "the result states less and says that less was spent": result(epsilon=0.01, spent=0.01),
    "the result states nothing": result(epsilon=None, spent=None),
    "the result says that all rounds are done": result(rounds=9, stopped="rounds"),
    "the result has another delta": result(delta=1e-12),
    "the result calls the run deployed": result(fidelity="deployed"),
    "the result of another run": take(RESULT),
    "no result, and no records": remove(RESULT, ROUNDS, METRICS),
    "no records": remove(ROUNDS),
    "empty records": lines(ROUNDS, lambda found: []),
    "the last record is cut": lines(ROUNDS, lambda found: found[:-1]),
    "the first record is cut": lines(ROUNDS, lambda found: found[1:]),
    "records are doubled": lines(ROUNDS, lambda found: [*found, *found]),
    "records are reversed": lines(ROUNDS, lambda found: found[::-1]),
    "records of more rounds, of one index": lines(ROUNDS, lambda found: add_records(found, index=found[-1]["index"])),
    "records of more rounds": lines(ROUNDS, add_records),
    "records of more rounds, and no model": both(lines(ROUNDS, add_records), remove(MODEL)),
    "records of more rounds of one index, no model, a result": both(
        lines(ROUNDS, lambda found: add_records(found, index=found[-1]["index"])),
        remove(MODEL),
        result(stopped="rounds", rounds=9),
    ),
    "records that say that less was spent": lines(ROUNDS, lower_epsilon),
    "records that say nothing of epsilon": lines(ROUNDS, partial(lower_epsilon, value=None)),
    "a last record that says that less was spent": lines(
        ROUNDS, lambda found: [*found[:-1], *lower_epsilon(found[-1:])]
    ),
    "records that say that less was spent, and no model": both(lines(ROUNDS, lower_epsilon), remove(MODEL)),
    "records of fewer clients, and no model": both(
        lines(ROUNDS, lambda found: [one | {"clients": one["clients"][:2]} for one in found]), remove(MODEL)
    ),
    "the last record is cut, and no model": both(lines(ROUNDS, lambda found: found[:-1]), remove(MODEL, RESULT)),
    "no records, and no model": remove(ROUNDS, MODEL, RESULT),
    "records of fewer clients": lines(ROUNDS, lambda found: [one | {"clients": one["clients"][:2]} for one in found]),
    "records of no survivors": update_all(ROUNDS, survivors=[0]),
    "records of more noise": update_all(ROUNDS, left=1e12, charged=1e12),
    "records under other indices": lines(ROUNDS, lambda found: [one | {"index": one["index"] + 1} for one in found]),
    "the records of another run": take(ROUNDS),
    "no metrics": remove(METRICS),
    "metrics called epsilon": update_all(METRICS, values={"epsilon": 0.01}),
    "the metrics of another run": take(METRICS),
    "no model": remove(MODEL),
    "the model of another run": take(MODEL),
    "an earlier model": earlier_model,
    "an earlier model, and no result": both(earlier_model, remove(RESULT)),
    "a model that says that less was spent": model_that_lies,
    "no receipts": remove(RECEIPTS),
    "no last receipt": lambda place: place.receipts()[-1].unlink(),
    "the receipts of another run": take(RECEIPTS),
    "receipts that name the first head": receipts(lambda one: one | {"ledger": "0" * 64}),
    "receipts that name no head": receipts(lambda one: one | {"ledger": ""}),
    "receipts of other survivors": receipts(lambda one: one | {"survivors": [one["survivors"][0][:3]]}),
    "receipts of more noise": receipts(lambda one: one | {"charged": ["1000000000000"], "left": ["1000000000000"]}),
    "more receipts": add_receipts,
    "no ledger": remove(LEDGER),
    "a directory for a ledger": both(remove(LEDGER), lambda place: (place.path / LEDGER).mkdir()),
    "an empty ledger": lambda place: (place.path / LEDGER).write_bytes(b""),
    "a ledger that is begun again": begin_ledger,
    "a ledger that is begun again, with a small budget": partial(begin_ledger, budget=Budget(0.01, 1e-5)),
    "a ledger that is begun again, with no budget": partial(begin_ledger, budget=Budget(None, 1e-5)),
    "a ledger that is begun again, in the paper's accounting": partial(
        begin_ledger, budget=Budget(6.0, 1e-5, paper=True)
    ),
    "a ledger that is begun again, and nothing else": both(
        begin_ledger, remove(RESULT, ROUNDS, METRICS, MODEL, RECEIPTS)
    ),
    "the ledger of another run": take(LEDGER),
    "the ledger of another run, renamed": rename_cheap_ledger,
    "all but the manifest of another run": take(LEDGER, RECEIPTS, ROUNDS, METRICS, MODEL, RESULT),
    "all but the manifest of another run, renamed": both(
        take(RECEIPTS, ROUNDS, METRICS, MODEL, RESULT),
        rename_cheap_ledger,
        lambda place: receipts(lambda one: one | {"run": load_run(place.path).id.hex()})(place),
    ),
    "the last line of the ledger is cut": cut(1),
    "the last two lines of the ledger are cut": cut(2),
    "the last three lines of the ledger are cut": cut(3),
    "the last round of the ledger is left out": ledger_of(drop_last_round),
    "the last round is left out everywhere": without_last_round,
    "the last round is left out everywhere, and the result is as it was": lambda place: (
        kept := (place.path / RESULT).read_bytes(),
        without_last_round(place),
        (place.path / RESULT).write_bytes(kept),
    ),
    "a line in the middle is missing": lambda place: (place.path / LEDGER).write_bytes(
        b"".join(line for i, line in enumerate((place.path / LEDGER).read_bytes().splitlines(keepends=True)) if i != 2)
    ),
    "a smaller budget in the ledger": ledger_of(lambda entries: entries[0].update(budget=0.01)),
    "smaller budgets in all of the ledger": ledger_of(
        lambda entries: [entry.update(budget=0.01) for entry in entries if "budget" in entry]
    ),
    "no budget in the ledger": ledger_of(lambda entries: entries[0].update(budget=None)),
    "no budgets in all of the ledger": ledger_of(
        lambda entries: [entry.update(budget=None) for entry in entries if "budget" in entry]
    ),
    "a larger delta in the ledger": ledger_of(lambda entries: entries[0].update(delta=0.1)),
    "larger deltas in all of the ledger": ledger_of(
        lambda entries: [entry.update(delta=0.1) for entry in entries if "delta" in entry]
    ),
    "the first format of ledgers": ledger_of(lambda entries: entries[0].update(format="dordis ledger 1")),
    "a ledger of more noise": ledger_of(scale_noise),
    "a ledger and receipts of more noise": both(
        ledger_of(scale_noise), receipts(lambda one: one | {"charged": ["1000000000000"], "left": ["1000000000000"]})
    ),
    "a ledger of no chance that a graph fails": ledger_of(partial(set_charges, failure=0.5)),
    "a ledger of other clients": ledger_of(partial(set_charges, clients=[101, 102, 103, 104, 105, 106])),
    "more rounds in the ledger": ledger_of(add_rounds),
    "more rounds in the ledger, of others": finish_ledger,
    "more rounds in the ledger, of others, and the result says so": both(
        finish_ledger, result(stopped="rounds", rounds=9)
    ),
    "more rounds in the ledger, of others, and receipts": both(finish_ledger, add_receipts),
    "more rounds in the ledger, of others, and records of one index": both(
        finish_ledger, lines(ROUNDS, lambda found: add_records(found, index=found[-1]["index"])), remove(RESULT)
    ),
    "more rounds in the ledger, of others, and records of one index, and no model": both(
        finish_ledger, lines(ROUNDS, lambda found: add_records(found, index=found[-1]["index"])), remove(RESULT, MODEL)
    ),
    "more rounds in the ledger, of others, receipts, and records": both(
        finish_ledger, add_receipts, lines(ROUNDS, add_records), remove(RESULT)
    ),
    "cheap rounds in the ledger": add_cheap_rounds,
    "cheap rounds in the ledger, and the result says so": both(add_cheap_rounds, result(stopped="rounds", rounds=9)),
    "cheap rounds in the ledger, and records of one index": both(
        add_cheap_rounds, lines(ROUNDS, lambda found: add_records(found, index=found[-1]["index"])), remove(RESULT)
    ),
    "cheap rounds in ledger, receipts and records": record_cheap_rounds,
    "cheap rounds in ledger, receipts and records, and no result": both(record_cheap_rounds, remove(RESULT)),
    "cheap rounds in ledger, receipts and records, and no model": both(record_cheap_rounds, remove(RESULT, MODEL)),
    "a line that says that the budget ended the run": refuse(Fraction(1)),
    "such a line, of a round with hardly any noise": refuse(Fraction(1, 100)),
    "such a line, of a round with half the noise, and the result says so": both(
        refuse(Fraction(1, 2)), result(stopped="budget", epsilon=0.01, spent=0.01)
    ),
    "such a line, and no result": both(refuse(Fraction(1, 100)), remove(RESULT)),
    "such a line, of a round of many colluders": refuse_cheap(even_shares),
    "such a line, of a round with prices": refuse_cheap(priced),
    "such a line, of a round that leaves no delta": refuse_cheap(fails_often, Fraction(1000)),
    "the predecessor is left out of the ledger": ledger_of(lose_predecessor),
    "the ledger is succeeded by another run": ledger_of(
        lambda entries: entries.append(
            {"kind": "succeeded", "previous": "", "run": "ab" * 32, "delta": 1e-5, "budget": 0.01}
        )
    ),
    "a smaller epsilon in the configuration": lambda place: (place.path / CONFIG).write_text(
        re.sub(r"(?m)^epsilon = .*$", "epsilon = 0.01", (place.path / CONFIG).read_text())
    ),
    "no configuration": remove(CONFIG),
    "a registry of others": strangers_registry,
    "an eviction of everybody": lambda place: (place.path / EVICTIONS).write_text(
        json.dumps({"index": 0, "clients": [1, 2, 3], "reason": "it lied"}) + "\n"
    ),
    "a report that states less": lambda place: write_report([place.path]).write_text(
        '<meta name="generator" content="dordis report"> (epsilon = 0.01, delta = 1e-05)'
    ),
}


LEFT_OUT = {"a ledger that is begun again, and nothing else", "the last round is left out everywhere"}
"""Nobody can tell such a run from one that has not gone as far: it states its budget, whatever it has spent so far."""
SPENT = ("verify run spent", "verify file spent", "load spent", "page epsilons")
"""What was spent so far, which is told beside what is stated."""


def numbers(pattern: str, text: str) -> float | None:
    """Return the least number that is found after a pattern."""
    return min((float(found) for found in re.findall(pattern + r"([0-9.]+(?:e-?[0-9]+)?)", text)), default=None)


def from_json(shown: Any, *names: str) -> dict[str, float | None]:
    """Return what a command told as JSON; nothing if it refused."""
    told = json.loads(shown.stdout) if shown.returncode in (0, 3) and shown.stdout else {}
    return {name: told.get(name) for name in names}


def tell(path: Path) -> dict[str, float | None]:
    """Return everything that commands, pages and the library state of a run; None where they state nothing."""
    told: dict[str, float | None] = {}
    for name, target in (("run", path), ("file", path / LEDGER)):
        shown = from_json(command("ledger", "verify", target, "--json"), "epsilon", "spent", "delta")
        told |= {f"verify {name} {key}": value for key, value in shown.items()}
    told |= {f"sum {k}": v for k, v in from_json(command("ledger", "sum", path, "--json"), "epsilon", "delta").items()}
    try:
        (facts,) = read_facts([path])
        page = write_report([path], path.parent / "pages").read_text()
        index = write_overview(path, path.parent / "pages").read_text()
        told["page headline"] = numbers(r"\(epsilon = ", page)
        told["page delta"] = numbers(r"\(epsilon = [^,]*, delta = ", page)
        told["page epsilons"] = numbers(r"epsilon = ", page)
        told["page tile"] = numbers(r'<div class="tile"><b>(?=[^<]*</b><span>epsilon)', page)
        told["overview"] = numbers(r"<td>(?=[0-9.]+; [0-9.]+ of [0-9.]+ spent)", index)
        rows = [line.split(",") for line in tables.rounds_csv([facts]).splitlines()]
        column = rows[0].index("epsilon")
        told |= {f"table, round {row[1]}": float(row[column]) for row in rows[1:] if row[column]}
        loaded = dordis.load(path)
        told |= {"load": loaded.epsilon, "load spent": loaded.spent, "load delta": loaded.delta}
        told |= {f"history, round {line['round']:g}": line.get("epsilon") for line in loaded.history}
    except DordisError:
        pass
    return told


@pytest.fixture(scope="session")
def honest(whole: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float | None]]:
    """Return what is stated of the runs as they are."""
    root = tmp_path_factory.mktemp("honest")
    return {kind: tell(Path(shutil.copytree(whole[kind], root / kind / "run"))) for kind in KINDS}


@pytest.mark.parametrize(("kind", "stated"), [("finished", None), ("interrupted", 6), ("failed", 6), ("successor", 20)])
def test_every_command_and_page_states_the_same(honest, kind: str, stated: float | None) -> None:
    told = honest[kind]
    assert all(value is not None for value in told.values())
    names = ("verify run epsilon", "verify file epsilon", "sum epsilon", "load")
    expected = told["verify run spent"] if stated is None else stated
    assert [told[name] for name in names] == [expected] * len(names)
    assert told["page headline"] == told["page tile"] == told["overview"] == pytest.approx(expected, rel=1e-3)
    assert told["verify run spent"] < (6 if stated is None else stated) * 0.99


def test_the_basis_is_that_of_the_ledger_and_the_manifest(whole: dict[str, Path]) -> None:
    bases = {
        kind: facts.stated_epsilon.basis
        for kind, facts in zip(KINDS, read_facts([whole[k] for k in KINDS]), strict=True)
    }
    assert bases == {
        "finished": Basis.FINISHED,
        "interrupted": Basis.EARLY,
        "failed": Basis.EARLY,
        "successor": Basis.BEFORE,
    }


def test_a_run_that_its_budget_ended_states_what_was_spent(tmp_path: Path) -> None:
    dropout = ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.3")
    sizes = ("federation.rounds=4", "federation.clients=20", "federation.per_round=20")
    job = job_of("privacy.noise.kind=early", *sizes, *dropout)
    run = job.start(tmp_path, config_to_toml(job.config))
    run.complete(told=lambda finished: None)
    (facts,) = read_facts([run.records.path])
    assert (facts.run.result.stopped, facts.stated_epsilon.basis) == ("budget", Basis.RULE)
    assert facts.reportable_epsilon == facts.spent < 6


def test_there_are_enough_ways() -> None:
    assert len(WAYS) >= 60


@pytest.mark.parametrize(
    ("name", "kind"),
    sample_cases([(name, kind) for kind in ("finished", "interrupted", "successor") for name in WAYS], one_in=8),
)
def test_tampering_never_lowers_what_is_stated(
    whole: dict[str, Path], honest, tmp_path: Path, name: str, kind: str
) -> None:
    path = Path(shutil.copytree(whole[kind], tmp_path / "run"))
    manifest = (path / "manifest.json").read_bytes()
    WAYS[name](Place(path, whole["cheap"]))
    assert (path / "manifest.json").read_bytes() == manifest
    for place, value in tell(path).items():
        if name in LEFT_OUT and place in SPENT:
            continue
        before = honest[kind].get(place)
        assert value is None or before is None or value >= before * (1 - CLOSE), (place, value, before)


def test_a_ledger_alone_states_its_budget(whole: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(whole["interrupted"] / LEDGER, tmp_path / "copy.jsonl")
    shutil.copy(whole["successor"] / LEDGER, tmp_path / "other.jsonl")
    assert (
        ledger.verify_ledger(tmp_path / "copy.jsonl").stated.epsilon
        == 6
        == combined_epsilon([tmp_path / "copy.jsonl"]).epsilon
    )
    assert ledger.verify_ledger(tmp_path / "other.jsonl").stated.epsilon == 20


def test_runs_add_up_with_what_each_states(whole: dict[str, Path]) -> None:
    parts = [whole["interrupted"], whole["failed"]]
    together = combined_epsilon(parts, 1e-5)
    assert together.epsilon > 8
    assert [part.stated.epsilon for part in together.parts] == [6, 6]
