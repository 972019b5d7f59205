"""The operator edits the directory of a finished run so that it seems to have cost less than it did.

If all files are rewritten consistently, only clients that kept a receipt can tell."""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from dordis.config.reading import read_config
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.ledger import verification
from dordis.ledger.combine_runs import combined_epsilon
from dordis.ledger.entries import Opened, decode_entry, encode_entry
from dordis.ledger.ledger import Ledger
from dordis.ledger.receipt import FIRST, Receipt, read_receipt_files
from dordis.protocol import ClientId
from dordis.protocols.encoded_sums import Aggregate
from dordis.records import run_records
from dordis.records.run_records import EVICTIONS, LEDGER, METRICS, MODEL, RECEIPTS, REGISTRY, RESULT, ROUNDS, Evictions
from dordis.rounds.app import AppServer, FixedClient, RoundInfo, State
from dordis.runs.run import Run
from dordis.simulation.population import Identities
from dordis.simulation.run import SimulatedJob, job_with_app
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.participants import COMPLETE
from tests.adversary.session import Foiled, Session

CLIENTS, SPENT, LESS = 6, 4.0, 2.0
CLOSE = 1e-6


class LastMean(AppServer):
    """A server that keeps the last mean."""

    dim = 4

    def __init__(self) -> None:
        self._mean = np.zeros(self.dim)

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Keep the mean."""
        self._mean = aggregate.mean

    def state(self) -> State:
        """Return the mean."""
        return {"mean": self._mean}


def job_of(epsilon: float = SPENT, rounds: int = 2) -> SimulatedJob:
    """Return a job in which everyone is in every round."""
    keys = {
        "federation.clients": CLIENTS,
        "federation.per_round": CLIENTS,
        "federation.rounds": rounds,
        "privacy.epsilon": epsilon,
        "simulation.fidelity": "ideal",
        "simulation.dropout.kind": "none",
    }
    config = read_config(keys=[f"{name}={value}" for name, value in keys.items()])
    return job_with_app(config, LastMean(), lambda u: FixedClient(np.full(LastMean.dim, 0.1)))


@cache
def finished(epsilon: float) -> tuple[Path, TemporaryDirectory[str]]:
    """Return a finished run, which nobody may change, and what removes it at the end of the process."""
    job, folder = job_of(epsilon), TemporaryDirectory()
    under_way = Run.start(job.job, job.home(Identities(bytes(32), job.ids)), Path(folder.name), "")
    under_way.complete()
    return under_way.records.path, folder


def copied(session: Session, folder: str, epsilon: float = SPENT) -> Path:
    """Return a copy of a finished run, to be tampered with."""
    session.trail.stage = "verify"
    return Path(shutil.copytree(finished(epsilon)[0], Path(folder) / f"{epsilon:g}"))


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of a file."""
    return path.read_bytes().splitlines(keepends=True)


def cut_ledger(path: Path) -> None:
    """Leave out the last round."""
    kept = [line for line in lines_of(path / LEDGER) if b'"index":1,' not in line]
    (path / LEDGER).write_bytes(b"".join(kept))


def begin_ledger_again(path: Path) -> None:
    """Delete the ledger, and put an empty one in its place."""
    (path / LEDGER).unlink()
    Ledger.create(path / LEDGER, run_records.load_run(path).id, job_of().job.design.budget)


def take_cheaper_ledger(path: Path) -> None:
    """Take the ledger of a run that cost less."""
    shutil.copy(finished(LESS)[0] / LEDGER, path / LEDGER)


def rename_cheaper_ledger(path: Path) -> None:
    """Take the ledger of a run that cost less, in the name of this one, with all hashes right."""
    previous, forged = run_records.load_run(path).id.hex(), b""
    for number, line in enumerate(lines_of(finished(LESS)[0] / LEDGER), 1):
        renamed = encode_entry(msgspec.structs.replace(decode_entry(line, number), previous=previous))
        previous, forged = hashlib.sha256(renamed).hexdigest(), forged + renamed
    (path / LEDGER).write_bytes(forged)


def cut_receipts(path: Path) -> None:
    """Leave out the last round, and the receipt that names it."""
    cut_ledger(path)
    sorted((path / RECEIPTS).iterdir())[-1].unlink()


def cut_records(path: Path) -> None:
    """Leave out the last round wherever it is written down but in the model."""
    cut_receipts(path)
    (path / RESULT).unlink()
    (path / ROUNDS).write_bytes(b"".join(lines_of(path / ROUNDS)[:-1]))


def put_earlier_model_back(path: Path) -> None:
    """Put a model in the place of the last one that was kept after the first round."""
    first = {name: lines_of(path / name)[0] for name in (ROUNDS, METRICS)}
    run_records.write_checkpoint(path / MODEL, first, run_records.read_state(path / MODEL))


def cut_all_but_result(path: Path) -> None:
    """Leave out the last round wherever it is written down but in the result."""
    put_earlier_model_back(path)
    result = (path / RESULT).read_bytes()
    cut_records(path)
    (path / RESULT).write_bytes(result)


def lower_budget(path: Path) -> None:
    """Write a smaller budget into the ledger, with all hashes right, in the receipts too."""
    before, heads, forged = run_records.load_run(path).id.hex(), {}, b""
    for number, line in enumerate(lines_of(path / LEDGER), 1):
        entry = msgspec.structs.replace(decode_entry(line, number), previous=before)
        written = encode_entry(msgspec.structs.replace(entry, budget=LESS) if isinstance(entry, Opened) else entry)
        before, forged = hashlib.sha256(written).hexdigest(), forged + written
        heads[hashlib.sha256(line).hexdigest()] = before
    (path / LEDGER).write_bytes(forged)
    rewrite_receipts(path, lambda receipt: msgspec.structs.replace(receipt, ledger=heads[receipt.ledger]))


def rewrite_receipts(path: Path, change: Callable[[Receipt], Receipt]) -> None:
    """Change every receipt of a run, with all hashes right."""
    previous = FIRST
    for receipt in read_receipt_files(path / RECEIPTS).values():
        changed = msgspec.structs.replace(change(receipt), previous=previous)
        changed.save(path / RECEIPTS)
        previous = changed.digest


def lower_recorded(path: Path) -> None:
    """Write down, in the records and with the model, that less was spent after every round."""
    lowered = [json.loads(line) | {"epsilon": 0.1} for line in lines_of(path / ROUNDS)]
    (path / ROUNDS).write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in lowered))
    last = {name: lines_of(path / name)[-1] for name in (ROUNDS, METRICS)}
    run_records.write_checkpoint(path / MODEL, last, run_records.read_state(path / MODEL))


def lose_receipts(path: Path) -> None:
    """Remove all receipts."""
    shutil.rmtree(path / RECEIPTS)


def take_receipts(path: Path) -> None:
    """Take the receipts of another run of the same clients."""
    lose_receipts(path)
    shutil.copytree(finished(LESS)[0] / RECEIPTS, path / RECEIPTS)


def move_client(path: Path) -> None:
    """Write down that another client was in a round."""
    first, *others = lines_of(path / ROUNDS)
    record = json.loads(first)
    record["clients"][-1] += 1
    (path / ROUNDS).write_bytes(b"".join([json.dumps(record).encode() + b"\n", *others]))


def state(session: Session, tamper: Callable[[Path], None]) -> str:
    """Tamper with a run, and see whether it states an epsilon all the same."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        tamper(path)
        summary = verification.check_evidence(run_records.load_run(path))
    return "the run states nothing" if summary is None else f"the run states epsilon = {summary.stated.epsilon:.3g}"


@attack(
    "a finished run without its model",
    refused_by="check_model (LedgerDamaged)",
    stage="verify",
    checks=(names.MODEL,),
    graphs=(COMPLETE,),
)
def begin_again(session: Session) -> str:
    """Delete the model of a finished run and resume it, so that its rounds run again."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        (path / MODEL).unlink()
        run = job_of().resume(path)
    return f"the run begins again after {run.done} rounds"


@attack(
    "the model of another run",
    refused_by="check_order (LedgerDamaged)",
    stage="verify",
    overlapping=(names.ORDER, names.COURSE),
    graphs=(COMPLETE,),
)
def take_model(session: Session) -> str:
    """Replace the model by that of another run of the same clients."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        shutil.copy(finished(LESS)[0] / MODEL, path / MODEL)
        verification.check_evidence(run_records.load_run(path))
    return "a model of other noise, and another epsilon, is given for this one"


@attack(
    "the model of an earlier round",
    refused_by="check_last (LedgerDamaged)",
    stage="verify",
    checks=(names.LAST,),
    graphs=(COMPLETE,),
)
def take_earlier_model(session: Session) -> str:
    """Restore the model from before the last round, so that this round runs again."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        put_earlier_model_back(path)
        run = job_of().resume(path)
    return f"the run goes on after {run.done} round"


@attack(
    "a successor with an empty ledger",
    refused_by="check_predecessor (LedgerDamaged)",
    stage="verify",
    checks=(names.PREDECESSOR,),
    graphs=(COMPLETE,),
)
def forget_predecessor(session: Session) -> str:
    """Give a successor run a ledger of its own, without what its clients spent before."""
    with TemporaryDirectory() as folder:
        following = job_of(rounds=3).succeed(copied(session, folder), Path(folder), "").records
        (following.path / LEDGER).unlink()
        Ledger.create(following.path / LEDGER, following.id, job_of().job.design.budget)
        summary = verification.check_evidence(run_records.load_run(following.path))
    return "nothing is stated" if summary is None else f"the successor states epsilon = {summary.stated.epsilon:.3g}"


@attack(
    "a successor after an eviction",
    refused_by="Evictions.inherit",
    stage="verify",
    checks=(names.INHERIT,),
    graphs=(COMPLETE,),
)
def come_back(session: Session) -> str:
    """Wait until the members change and a successor run begins: evicted clients would take part again."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        Evictions(path / EVICTIONS).add(1, [ClientId(1)], "it lied")
        following = job_of(rounds=3).succeed(path, Path(folder), "").records
        if 1 in Evictions(following.path / EVICTIONS).clients:
            raise Foiled("Evictions.inherit", "it is still evicted")
    return "a liar is back in the successor run"


@attack(
    "two runs of one population stated as of two",
    refused_by="check_root (LedgerDamaged)",
    stage="verify",
    checks=(names.ROOT,),
    graphs=(COMPLETE,),
)
def estrange(session: Session) -> str:
    """Give one of two runs another registry, so that the costs of the clients in both are not added up."""
    with TemporaryDirectory() as folder:
        paths = [copied(session, folder, epsilon) for epsilon in (SPENT, LESS)]
        for path in paths:
            Registry(Identities(bytes(32), job_of().ids).registry).save(path / REGISTRY)
        together = combined_epsilon(paths).epsilon
        Registry({u: Keys.generate().identity() for u in job_of().ids}).save(paths[1] / REGISTRY)
        apart = combined_epsilon(paths).epsilon
    if apart > together * (1 - CLOSE):
        raise Foiled("dordis ledger sum", "both runs are added up")
    return f"together the runs cost {together:.3g}, and {apart:.3g} is stated"


row = partial(Attack, graphs=(COMPLETE,))
MISSING = (names.RECEIPTS, names.ROUNDS, names.RECORDED, names.COURSE)

ATTACKS: tuple[Attack, ...] = (
    row(
        "a truncated ledger",
        "The last round is cut off the ledger: the run seems to have cost one round less.",
        partial(state, tamper=cut_ledger),
        refused_by="check_receipts (LedgerDamaged)",
        stage="verify",
        overlapping=MISSING,
    ),
    row(
        "a deleted ledger",
        "The ledger is replaced by an empty one: the run seems to have cost nothing.",
        partial(state, tamper=begin_ledger_again),
        refused_by="check_receipts (LedgerDamaged)",
        stage="verify",
        overlapping=MISSING,
    ),
    row(
        "the ledger of a cheaper run",
        "The ledger is replaced by that of another, cheaper run.",
        partial(state, tamper=take_cheaper_ledger),
        refused_by="check_run (LedgerDamaged)",
        stage="verify",
        overlapping=(names.LEDGER_RUN, names.BUDGET, names.RECEIPTS, names.RECORDED, names.COURSE),
    ),
    row(
        "the ledger of a cheaper run, with new hashes",
        "The ledger is replaced by that of a cheaper run, with this run's id and all hashes recomputed.",
        partial(state, tamper=rename_cheaper_ledger),
        refused_by="check_budget_stated (LedgerDamaged)",
        stage="verify",
        overlapping=(names.BUDGET, names.RECEIPTS, names.RECORDED, names.COURSE),
    ),
    row(
        "a smaller budget in the ledger",
        "The budget in the ledger is reduced, with all hashes recomputed, so that a stopped run states less.",
        partial(state, tamper=lower_budget),
        refused_by="check_budget_stated (LedgerDamaged)",
        stage="verify",
        checks=(names.BUDGET,),
    ),
    row(
        "records with a smaller epsilon",
        "The records, and the last record in the model file, state a smaller epsilon after every round.",
        partial(state, tamper=lower_recorded),
        refused_by="check_course (LedgerDamaged)",
        stage="verify",
        checks=(names.COURSE,),
    ),
    row(
        "a truncated ledger without the last receipt",
        "The last round is removed from the ledger, with its receipt.",
        partial(state, tamper=cut_receipts),
        refused_by="check_rounds (LedgerDamaged)",
        stage="verify",
        overlapping=(names.ROUNDS, names.RECORDED, names.COURSE),
    ),
    row(
        "a truncated ledger, receipts and records",
        "The last round is removed from ledger, receipts, records and result; the model file still names it.",
        partial(state, tamper=cut_records),
        refused_by="check_rounds (LedgerDamaged)",
        stage="verify",
        overlapping=(names.ROUNDS, names.COURSE),
    ),
    row(
        "a truncated run with its old result",
        "The last round is removed from ledger, receipts and records, and the model is an earlier one.",
        partial(state, tamper=cut_all_but_result),
        refused_by="check_recorded (LedgerDamaged)",
        stage="verify",
        checks=(names.RECORDED,),
    ),
    row(
        "a run without its receipts",
        "The receipts are removed, so that the ledger cannot be compared with what clients were sent.",
        partial(state, tamper=lose_receipts),
        refused_by="check_rounds (LedgerDamaged)",
        stage="verify",
        checks=(names.ROUNDS,),
    ),
    row(
        "the receipts of another run",
        "The receipts are those of another run of the same clients.",
        partial(state, tamper=take_receipts),
        refused_by="check_receipt (LedgerDamaged)",
        stage="verify",
        overlapping=(names.RECEIPT, names.RECEIPTS),
    ),
    row(
        "another client in a round",
        "The records name a client in a round in which it did not take part, so that another one's spending is hidden.",
        partial(state, tamper=move_client),
        refused_by="check_rounds (LedgerDamaged)",
        stage="verify",
        checks=(names.ROUNDS,),
    ),
    begin_again,
    take_model,
    take_earlier_model,
    forget_predecessor,
    come_back,
    estrange,
)
