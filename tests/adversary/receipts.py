"""The operator alters receipts, with all hashes recomputed, before an auditor verifies the run offline.

The auditor has the registry of the federation, and the files of the run.  In the last attacks a server shows rewritten
receipts to clients that kept their own."""

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dordis import wire
from dordis.config.reading import read_config
from dordis.identity.keys import Keys
from dordis.identity.registry import Member, Membership, Registry, RevokedKeys, SignedRegistry
from dordis.ledger import ledger
from dordis.ledger.receipt import FIRST, Receipt, read_receipt_files
from dordis.ledger.verification import verify_run
from dordis.owner.receipts import Attended, KeptReceipts, Shown
from dordis.privacy.scaling import Sensitivity
from dordis.privacy.xnoise_components import removal_context
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.records import run_records
from dordis.records.run_records import LEDGER, METRICS, MODEL, RECEIPTS, RESULT, ROUNDS
from dordis.rounds.app import FixedClient
from dordis.runs.run import Run
from dordis.simulation.population import Identities
from dordis.simulation.run import SimulatedJob, job_with_app
from tests.adversary import names
from tests.adversary.attack import Attack
from tests.adversary.directories import LastMean, lines_of, rewrite_receipts
from tests.adversary.participants import COMPLETE
from tests.adversary.session import Session
from tests.ledger.charged_rounds import forge

CLIENTS = 6
ASSISTED: Mapping[str, object] = {
    "federation.clients": 40,
    "federation.per_round": 20,
    "federation.rounds": 1,
    "federation.arrival": "open",
    "privacy.delta": 1e-5,
    "protocol.use": "assisted",
    "protocol.options.helpers": [41, 42, 43, 44],
    "protocol.colluders": 1,
}
"""Settings of a run with helpers whose ids are not those of clients."""


def job_of(more: Mapping[str, object] = MappingProxyType({})) -> SimulatedJob:
    """Return a job of two rounds against a malicious server, with every message; `more` has further settings."""
    keys = {
        "federation.clients": CLIENTS,
        "federation.per_round": CLIENTS,
        "federation.rounds": 2,
        "privacy.epsilon": 4.0,
        "protocol.mode": "malicious",
        "simulation.dropout.kind": "none",
    }
    config = read_config(keys=[f"{name}={value}" for name, value in (keys | dict(more)).items()])
    return job_with_app(config, LastMean(), lambda u: FixedClient(np.full(LastMean.dim, 0.1)))


def registry_of(job: SimulatedJob) -> Registry:
    """Return the registry that the authority would give to the auditor."""
    return Identities(bytes(32), job.ids).registry


@cache
def finished() -> tuple[Path, TemporaryDirectory[str]]:
    """Return a finished run, which nobody may change, and what removes it at the end of the process."""
    job, folder = job_of(), TemporaryDirectory()
    under_way = Run.start(job.job, job.home(Identities(bytes(32), job.ids)), Path(folder.name), "")
    under_way.complete()
    return under_way.records.path, folder


def present(session: Session, tamper: Callable[[Path], None], registry: Registry | None = None) -> str:
    """Tamper with the run, and have an auditor verify it."""
    session.trail.stage = "verify"
    with TemporaryDirectory() as folder:
        path = Path(shutil.copytree(finished()[0], Path(folder) / "run"))
        tamper(path)
        verified = verify_run(run_records.load_run(path), registry or registry_of(job_of()))
    return f"the auditor accepts {len(verified.receipts)} receipts"


def present_revoked(session: Session) -> str:
    """Make a run with the leaked keys of a helper that was revoked before, and have an auditor verify it."""
    session.trail.stage = "verify"
    job = job_of(ASSISTED)
    identities = Identities(bytes(32), job.ids, job.job.protocol.helper_ids)
    gone = identities.helpers[0]
    leaked = Member.from_identity("helper", identities.registry.helpers[gone])
    members = {int(u): Member.from_identity(f"c{u}", one) for u, one in identities.registry.items()}
    rest = {int(h): Member.from_identity(f"h{h}", one) for h, one in identities.registry.helpers.items() if h != gone}
    revoked = (RevokedKeys(int(gone), leaked, "2020-01-01T00:00:00Z", "its keys leaked"),)
    with TemporaryDirectory() as folder:
        under_way = Run.start(job.job, job.home(identities), Path(folder), "")
        under_way.complete()
        known = SignedRegistry(Membership(2, "2020-01-01T00:00:00Z", members | rest, revoked), b"")
        verify_run(run_records.load_run(under_way.records.path), known)
    return "the auditor accepts a quorum with a helper whose keys were revoked before the run"


def keep(value: Any) -> Any:
    """Change nothing."""
    return value


def rewrite(
    path: Path,
    entries: Callable[[list[Any]], None] = keep,
    receipts: Callable[[Receipt], Receipt] = keep,
    records: Callable[[dict[str, Any]], dict[str, Any]] = keep,
) -> None:
    """Rewrite ledger, receipts, records and checkpoint of a run so that they agree, with all hashes right."""
    forge(path / LEDGER, entries)
    account, _ = ledger.read_ledger(path / LEDGER, run_records.load_run(path).id)
    ends = {json.loads(line).get("index"): sha256(line).hexdigest() for line in lines_of(path / LEDGER)}
    rewrite_receipts(
        path,
        lambda one: receipts(replace(one, ledger=ends[one.index], epsilon=account.epsilon_after(one.index))),
    )
    lines = [records(json.loads(line)) for line in lines_of(path / ROUNDS)]
    lines = [line | {"epsilon": account.epsilon_after(line["index"])} for line in lines]
    (path / ROUNDS).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    last = {name: lines_of(path / name)[-1] for name in (ROUNDS, METRICS)}
    run_records.write_checkpoint(path / MODEL, last, run_records.read_state(path / MODEL))
    (path / RESULT).unlink()


def without_last(receipt: Receipt) -> Receipt:
    """Leave the last client out of the survivors, with the noise that the others keep."""
    parameters = wire.decode(receipt.agreed, CohortParameters)
    survivors = tuple(u for u in receipt.clients if u != receipt.clients[-1])
    lots, plan = removal_context(parameters.round, 0, parameters.digest), parameters.plans[0]
    left, charged = plan.variance_left(survivors, lots), plan.charged_variance(survivors, lots)
    return replace(receipt, survivors=(survivors,), left=(str(left),), charged=(str(charged),))


def hide_survivor(path: Path) -> None:
    """Write down everywhere that a client dropped out of all rounds, so that it seems to have spent nothing."""
    known = read_receipt_files(path / RECEIPTS)

    def drop(entries: list[Any]) -> None:
        for entry in entries:
            if "charge" in entry:
                entry["charge"]["dropped"] = [1]
            if "facts" in entry:
                forged = without_last(known[entry["index"]])
                entry["facts"] = [
                    {"dropped": forged.clients[-1:], "left": forged.left[0], "charged": forged.charged[0]}
                ]

    rewrite(path, drop, without_last, lambda record: record | {"survivors": [CLIENTS - 1]})


def charge_less(path: Path) -> None:
    """Charge every round in the ledger for updates half as long as they may be."""

    def halve(entries: list[Any]) -> None:
        for entry in entries:
            if "charge" in entry:
                (release,) = entry["charge"]["releases"]
                shorter = Sensitivity(release["l2_squared"] // 4, release["dim"])
                release |= {"l2_squared": shorter.squared, "l1": shorter.l1}

    rewrite(path, halve)


def noisier(receipt: Receipt) -> Receipt:
    """Put parameters with twice the noise into a receipt, whose hash stays that of the agreed ones."""
    parameters = wire.decode(receipt.agreed, CohortParameters)
    twice = {chunk: str(2 * Fraction(text)) for chunk, text in parameters.variances.items()}
    other = replace(parameters, variances=twice)
    lots, plan = removal_context(other.round, 0, other.digest), other.plans[0]
    left, charged = (f(receipt.survivors[0], lots) for f in (plan.variance_left, plan.charged_variance))
    stated = {"planned": (twice[0],), "left": (str(left),), "charged": (str(charged),)}
    return replace(receipt, agreed=wire.encode(other), **stated)


def doubled(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return twice as large variances."""
    return tuple(str(2 * Fraction(text)) for text in texts)


def alter_first(path: Path) -> None:
    """State more noise left in the first receipt alone."""
    first = min(read_receipt_files(path / RECEIPTS).items())[1]
    replace(first, left=doubled(first.left)).save(path / RECEIPTS)


def strangers() -> Registry:
    """Return a registry with other keys for the same clients."""
    return Registry({u: Keys.generate().identity() for u in job_of().ids})


OBSERVER = ClientId(1 << 20)
"""A client that is in no round: its own state is not compared."""


def confront(
    session: Session, notes: Collection[int], seen: Collection[int], history: Callable[[list[Shown]], list[Shown]]
) -> str:
    """Show a history to a client that noted some rounds of the run, and was shown the receipts of some."""
    session.trail.stage = "log-in"
    receipts = read_receipt_files(finished()[0] / RECEIPTS)
    run, keys = bytes.fromhex(receipts[0].run), registry_of(job_of()).signing_keys()
    true = [Shown(index, one.digest, one) for index, one in receipts.items()]
    with TemporaryDirectory() as folder:
        kept = KeptReceipts(Path(folder))
        kept.compare(run, [true[index] for index in seen], keys, complete=True, me=OBSERVER)
        for index in notes:
            parameters = wire.decode(receipts[index].agreed, CohortParameters)
            kept.note_attended(parameters)
            kept.note_delivered(parameters, tuple(map(len, receipts[index].survivors)))
        kept.compare(run, history(true), keys, complete=True, me=OBSERVER)
    return "the client goes on with a server that rewrote the run"


def restate(receipt: Receipt, **changes: Any) -> Shown:
    """Return an entry with an altered receipt, and its hash."""
    altered = replace(receipt, **changes)
    return Shown(altered.index, altered.digest, altered)


def rewrite_noise(true: list[Shown]) -> list[Shown]:
    """State more noise left in the first round, and let the second receipt follow."""
    first = restate(true[0].receipt, left=doubled(true[0].receipt.left))
    return [first, restate(true[1].receipt, previous=first.digest)]


def forget(session: Session) -> str:
    """Let a client take part whose state is from before a round that has its input: its owner counts too little."""
    session.trail.stage = "log-in"
    receipts = read_receipt_files(finished()[0] / RECEIPTS)
    run, keys = bytes.fromhex(receipts[0].run), registry_of(job_of()).signing_keys()
    shown = [Shown(index, one.digest, one) for index, one in receipts.items()]
    with TemporaryDirectory() as folder:
        me = ClientId(receipts[0].survivors[0][0])
        KeptReceipts(Path(folder)).compare(run, shown, keys, complete=True, me=me)
    return "the client takes part again, although its state has forgotten a participation"


def disown(session: Session, whole: bool) -> str:
    """Acknowledge a contribution to a round that lists no clients; show the round's hash, or a receipt without it."""
    session.trail.stage = "log-in"
    receipt = read_receipt_files(finished()[0] / RECEIPTS)[0]
    with TemporaryDirectory() as folder:
        kept, run = KeptReceipts(Path(folder)), bytes.fromhex(receipt.run)
        kept._add(run, [Attended(0, receipt.parameters, is_listed=False)])
        kept.note_acknowledged(run, 0)
        shown = Shown(0, receipt.digest, receipt if whole else None)
        kept.compare(run, [shown], registry_of(job_of()).signing_keys(), complete=True, me=OBSERVER)
    return "the client takes part again, although the server denies its contribution"


row = partial(Attack, **{"graphs": (COMPLETE,), "stage": "verify"})

ATTACKS: tuple[Attack, ...] = (
    row(
        "a survivor that is said to have dropped out",
        "Ledger, receipts and records say consistently that a client dropped out, so that it seems to have spent less.",
        partial(present, tamper=hide_survivor),
        refused_by="verify_receipt (LedgerDamaged)",
        checks=(names.QUORUM_SIGNED,),
    ),
    row(
        "a ledger that charges less than a round costs",
        "The ledger charges all rounds for shorter updates than their parameters allow, and all files agree with it.",
        partial(present, tamper=charge_less),
        refused_by="check_charge (LedgerDamaged)",
        checks=(names.RECEIPT_CHARGE,),
    ),
    row(
        "receipts with the parameters of noisier rounds",
        "The receipts contain parameters with more noise than the clients agreed to.",
        partial(present, tamper=partial(rewrite_receipts, change=noisier)),
        refused_by="check_parameters (LedgerDamaged)",
        overlapping=(names.RECEIPT_PARAMETERS, names.QUORUM_SIGNED, names.RECEIPT_CHARGE),
    ),
    row(
        "receipts with more noise than was kept",
        "The receipts state that more noise counts for privacy than their survivors kept.",
        partial(present, tamper=partial(rewrite_receipts, change=lambda r: replace(r, charged=doubled(r.charged)))),
        refused_by="check_noise (LedgerDamaged)",
        checks=(names.RECEIPT_NOISE,),
    ),
    row(
        "receipts with a smaller epsilon",
        "The receipts state a smaller epsilon than the ledger gives.",
        partial(present, tamper=partial(rewrite_receipts, change=lambda r: replace(r, epsilon=0.1))),
        refused_by="check_epsilon (LedgerDamaged)",
        checks=(names.RECEIPT_EPSILON,),
    ),
    row(
        "one altered receipt",
        "A receipt states more noise in the sum than was left, and the next receipt still has the hash of the old one.",
        partial(present, tamper=alter_first),
        refused_by="check_chain (LedgerDamaged)",
        checks=(names.CHAIN,),
    ),
    row(
        "a run of clients that are not in the registry",
        "The run was made with keys that the operator generated, and is presented as one of the registered clients.",
        partial(present, tamper=keep, registry=strangers()),
        refused_by="check_root (LedgerDamaged)",
        overlapping=(names.RECEIPT_ROOT, names.QUORUM_SIGNED),
    ),
    row(
        "a run with a helper whose keys were revoked",
        "The operator has the leaked keys of a helper that was revoked before the run began, and counts its quorum.",
        present_revoked,
        refused_by="check_keys_valid (LedgerDamaged)",
        checks=(names.RECEIPT_KEYS,),
    ),
    row(
        "a receipt that was replaced after clients had seen it",
        "A restarted server shows other receipts of the same rounds, with valid signatures and all hashes right.",
        partial(confront, notes=(), seen=(0, 1), history=rewrite_noise),
        refused_by="check_history (HistoryContradicted)",
        stage="log-in",
        checks=(names.NOTHING_REWRITTEN,),
    ),
    row(
        "a round that a client took part in is left out",
        "The server shows a history without a round whose sum it had delivered.",
        partial(confront, notes=(0, 1), seen=(), history=lambda true: [restate(true[1].receipt, previous=FIRST)]),
        refused_by="check_history (HistoryContradicted)",
        stage="log-in",
        checks=(names.HISTORY_DELIVERED,),
    ),
    row(
        "a client is left out of its round",
        "The server shows a history in which another round took place at the index of the client's own.",
        partial(
            confront,
            notes=(0,),
            seen=(),
            history=lambda true: [Shown(0, "ab" * 32), restate(true[1].receipt, previous="ab" * 32)],
        ),
        refused_by="check_history (HistoryContradicted)",
        stage="log-in",
        checks=(names.HISTORY_ATTENDED,),
    ),
    row(
        "a client's state is an old copy",
        "A client restores its state from before a round that has its input, and would count too few participations.",
        forget,
        refused_by="check_own_state (HistoryContradicted)",
        stage="log-in",
        checks=(names.HISTORY_OWN_STATE,),
    ),
    row(
        "an acknowledged contribution is left out of its round",
        "The server acknowledges a contribution to an assisted round, and shows a history of the round without it.",
        partial(disown, whole=False),
        refused_by="check_history (HistoryContradicted)",
        stage="log-in",
        checks=(names.HISTORY_ATTENDED,),
    ),
    row(
        "a receipt without an acknowledged contribution",
        "The server acknowledges a contribution to an assisted round, and shows a receipt without the client.",
        partial(disown, whole=True),
        refused_by="check_own_arrival (HistoryContradicted)",
        stage="log-in",
        checks=(names.HISTORY_OWN_ARRIVAL,),
    ),
    row(
        "another round before the client's own",
        "The server replaces the receipt of a round that the client was not in, and shows the client's own unaltered.",
        partial(confront, notes=(1,), seen=(), history=lambda true: [Shown(0, "ab" * 32), true[1]]),
        refused_by="check_history (HistoryContradicted)",
        stage="log-in",
        checks=(names.HISTORY_LINKS,),
    ),
    row(
        "the receipt of another index",
        "The server shows a receipt of this run under the index of a round that never was.",
        partial(confront, notes=(), seen=(), history=lambda true: [Shown(5, true[0].digest, true[0].receipt)]),
        refused_by="check_shown_receipt (HistoryContradicted)",
        stage="log-in",
        checks=(names.SHOWN_RECEIPT,),
    ),
)
