"""Somebody who writes to the directory of a finished run, so that the run seems to have cost less than it did."""

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.participants import COMPLETE
from dordis.adversary.session import Foiled, Session
from dordis.federation import checkpoint, evidence, records
from dordis.federation.evictions import Evictions
from dordis.federation.joint import joint
from dordis.federation.ledger import Ledger
from dordis.federation.lines import Opened, entry_of, line_of
from dordis.federation.records import EVICTIONS, LEDGER, METRICS, MODEL, RECEIPTS, REGISTRY, RESULT, ROUNDS
from dordis.federation.registry import Keys, Registry
from dordis.federation.run import Run
from dordis.protocol import ClientId
from dordis.protocols.distributed_dp import Aggregate
from dordis.rounds.app import AppServer, FixedClient, RoundInfo, State
from dordis.simulation.home import Identities
from dordis.simulation.reading import read
from dordis.simulation.run import SimulatedJob, simulated

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
    config = read(keys=[f"{name}={value}" for name, value in keys.items()])
    return simulated(config, LastMean(), lambda u: FixedClient(np.full(LastMean.dim, 0.1)))


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
    Ledger.create(path / LEDGER, records.load(path).id, job_of().job.design.budget)


def take_cheaper_ledger(path: Path) -> None:
    """Take the ledger of a run that cost less."""
    shutil.copy(finished(LESS)[0] / LEDGER, path / LEDGER)


def rename_cheaper_ledger(path: Path) -> None:
    """Take the ledger of a run that cost less, in the name of this one, with all hashes right."""
    previous, forged = records.load(path).id.hex(), b""
    for number, line in enumerate(lines_of(finished(LESS)[0] / LEDGER), 1):
        renamed = line_of(msgspec.structs.replace(entry_of(line, number), previous=previous))
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
    checkpoint.write(path / MODEL, first, checkpoint.read_state(path / MODEL))


def cut_all_but_result(path: Path) -> None:
    """Leave out the last round wherever it is written down but in the result."""
    put_earlier_model_back(path)
    result = (path / RESULT).read_bytes()
    cut_records(path)
    (path / RESULT).write_bytes(result)


def lower_budget(path: Path) -> None:
    """Write a smaller budget into the ledger, with all hashes right, in the receipts too."""
    before, heads, forged = records.load(path).id.hex(), {}, b""
    for number, line in enumerate(lines_of(path / LEDGER), 1):
        entry = msgspec.structs.replace(entry_of(line, number), previous=before)
        written = line_of(msgspec.structs.replace(entry, budget=LESS) if isinstance(entry, Opened) else entry)
        before, forged = hashlib.sha256(written).hexdigest(), forged + written
        heads[hashlib.sha256(line).hexdigest()] = before
    (path / LEDGER).write_bytes(forged)
    for file in (path / RECEIPTS).iterdir():
        receipt = json.loads(file.read_bytes())
        file.write_text(json.dumps(receipt | {"ledger": heads[receipt["ledger"]]}))


def lower_recorded(path: Path) -> None:
    """Write down, in the records and with the model, that less was spent after every round."""
    lowered = [json.loads(line) | {"epsilon": 0.1} for line in lines_of(path / ROUNDS)]
    (path / ROUNDS).write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in lowered))
    last = {name: lines_of(path / name)[-1] for name in (ROUNDS, METRICS)}
    checkpoint.write(path / MODEL, last, checkpoint.read_state(path / MODEL))


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
        summary = evidence.check_evidence(records.load(path))
    return "the run states nothing" if summary is None else f"the run states epsilon = {summary.stated.epsilon:.3g}"


@attack("a finished run without its model", checks=(names.MODEL,), graphs=(COMPLETE,))
def begin_again(session: Session) -> str:
    """Delete the model of a finished run and resume the run: its rounds are to be run again."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        (path / MODEL).unlink()
        run = job_of().resume(path)
    return f"the run begins again after {run.done} rounds"


@attack("the model of another run", overlapping=(names.ORDER, names.COURSE), graphs=(COMPLETE,))
def take_model(session: Session) -> str:
    """Put the model of another run of the same clients in a run's place: it is to be given for what the run learnt."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        shutil.copy(finished(LESS)[0] / MODEL, path / MODEL)
        evidence.check_evidence(records.load(path))
    return "a model of other noise, and another epsilon, is given for this one"


@attack("the model of an earlier round", checks=(names.LAST,), graphs=(COMPLETE,))
def take_earlier_model(session: Session) -> str:
    """Put a model back that was kept before the last round: that round is to be run again."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        put_earlier_model_back(path)
        run = job_of().resume(path)
    return f"the run goes on after {run.done} round"


@attack("a successor that forgets what was spent", checks=(names.PREDECESSOR,), graphs=(COMPLETE,))
def forget_predecessor(session: Session) -> str:
    """Give a successor run a ledger of its own: what its clients spent before is to be forgotten."""
    with TemporaryDirectory() as folder:
        following = job_of(rounds=3).succeed(copied(session, folder), Path(folder), "").records
        (following.path / LEDGER).unlink()
        Ledger.create(following.path / LEDGER, following.id, job_of().job.design.budget)
        summary = evidence.check_evidence(records.load(following.path))
    return "nothing is stated" if summary is None else f"the successor states epsilon = {summary.stated.epsilon:.3g}"


@attack("a successor after an eviction", checks=(names.INHERIT,), graphs=(COMPLETE,))
def come_back(session: Session) -> str:
    """Wait until the members change and a successor run begins: whoever was evicted is to be back."""
    with TemporaryDirectory() as folder:
        path = copied(session, folder)
        Evictions(path / EVICTIONS).add(1, [ClientId(1)], "it lied")
        following = job_of(rounds=3).succeed(path, Path(folder), "").records
        if 1 in Evictions(following.path / EVICTIONS).clients:
            raise Foiled("Evictions.inherit", "it is still evicted")
    return "a liar is back in the successor run"


@attack("two runs of one population, as if of two", checks=(names.ROOT,), graphs=(COMPLETE,))
def estrange(session: Session) -> str:
    """Give one of two runs a registry of strangers: what the same clients spent in both is not to be added up."""
    with TemporaryDirectory() as folder:
        paths = [copied(session, folder, epsilon) for epsilon in (SPENT, LESS)]
        for path in paths:
            Registry(Identities(bytes(32), job_of().ids).registry).save(path / REGISTRY)
        together = joint(paths).epsilon
        Registry({u: Keys.generate().identity() for u in job_of().ids}).save(paths[1] / REGISTRY)
        apart = joint(paths).epsilon
    if apart > together * (1 - CLOSE):
        raise Foiled("dordis ledger sum", "both runs are added up")
    return f"together the runs cost {together:.3g}, and {apart:.3g} is stated"


row = partial(Attack, graphs=(COMPLETE,))
MISSING = (names.RECEIPTS, names.ROUNDS, names.RECORDED, names.COURSE)

ATTACKS: tuple[Attack, ...] = (
    row(
        "a ledger that was cut",
        "The last round is cut off the ledger: the run is to have cost one round less.",
        partial(state, tamper=cut_ledger),
        overlapping=MISSING,
    ),
    row(
        "a ledger that was deleted and begun again",
        "The ledger is deleted, and an empty one put in its place: the run is to have cost nothing.",
        partial(state, tamper=begin_ledger_again),
        overlapping=MISSING,
    ),
    row(
        "the ledger of a cheaper run",
        "The ledger is that of another run, which cost less.",
        partial(state, tamper=take_cheaper_ledger),
        overlapping=(names.LEDGER_RUN, names.BUDGET, names.RECEIPTS, names.RECORDED, names.COURSE),
    ),
    row(
        "the ledger of a cheaper run, hashed again",
        "The ledger is that of another run, which cost less, in the name of this one and with all hashes right.",
        partial(state, tamper=rename_cheaper_ledger),
        overlapping=(names.BUDGET, names.RECEIPTS, names.RECORDED, names.COURSE),
    ),
    row(
        "a smaller budget in the ledger",
        "The budget in the ledger is a smaller one, with all hashes right: a run that was stopped is to state that.",
        partial(state, tamper=lower_budget),
        checks=(names.BUDGET,),
    ),
    row(
        "records that say that less was spent",
        "The records, and the line that the model keeps, have a smaller epsilon after every round.",
        partial(state, tamper=lower_recorded),
        checks=(names.COURSE,),
    ),
    row(
        "a ledger that was cut, without the receipt that shows it",
        "The last round is cut off the ledger, and its receipt is removed.",
        partial(state, tamper=cut_receipts),
        overlapping=(names.ROUNDS, names.RECORDED, names.COURSE),
    ),
    row(
        "a ledger, receipts and records that were cut",
        "The last round is cut off the ledger, the receipts and the records, result included: the model still has it.",
        partial(state, tamper=cut_records),
        overlapping=(names.ROUNDS, names.COURSE),
    ),
    row(
        "a run that was cut but for its result",
        "The last round is cut off the ledger, the receipts and the records, and the model is an earlier one.",
        partial(state, tamper=cut_all_but_result),
        checks=(names.RECORDED,),
    ),
    row(
        "a run without its receipts",
        "The receipts are removed, so that nothing holds the ledger to what clients were told.",
        partial(state, tamper=lose_receipts),
        checks=(names.ROUNDS,),
    ),
    row(
        "the receipts of another run",
        "The receipts are those of another run of the same clients.",
        partial(state, tamper=take_receipts),
        overlapping=(names.RECEIPT, names.RECEIPTS),
    ),
    row(
        "another client in a round",
        "The records name a client in a round in which it was not: it is to seem that another one has spent.",
        partial(state, tamper=move_client),
        checks=(names.ROUNDS,),
    ),
    begin_again,
    take_model,
    take_earlier_model,
    forget_predecessor,
    come_back,
    estrange,
)
