"""Synthetic runs: plausible records of every noise strategy, written the way a run writes them."""

import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dordis.ledger.ledger import Ledger
from dordis.ledger.receipt import Receipt, last_digest
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import TABLE
from dordis.privacy.setting import Setting
from dordis.privacy.xnoise_components import NoisePlan, Scheme
from dordis.records.manifest import DEPLOYED, Manifest, PlanRecord
from dordis.records.run_records import (
    LEDGER,
    RECEIPTS,
    FailedAttempt,
    RoundMetrics,
    RoundRecord,
    RunOutcome,
    RunRecords,
)
from dordis.runs.plan import RoundPlan
from tests.ledger.charged_rounds import ended

PER_ROUND, POPULATION = 50, 500
WANTED = Fraction(250_000)
STAGES = {
    "select": 0.004,
    "prepare": 1.9,
    "advertise keys": 0.12,
    "share keys": 0.45,
    "deliver shares": 0.2,
    "collect input": 2.4,
    "agree": 0.1,
    "unmask": 0.9,
    "remove noise": 0.25,
    "decode": 0.4,
    "use output": 0.8,
}
BEFORE_UPLOAD = ("AdvertiseKeys", "ShareKeys", "CollectInput")
LOSSES = {"AdvertiseKeys": 1, "ShareKeys": 1, "CollectInput": 5, "Unmask": 1, "RemoveNoise": 1}
SCHEMES = {"xnoise": Scheme.SINGLE, "rebasing": Scheme.SINGLE, "conservative": Scheme.CONSERVATIVE}
BY_NAME = {kind().name: kind() for kind in TABLE}
STRATEGIES = tuple(BY_NAME)


@dataclass(frozen=True)
class Kind:
    """What a synthetic run is like."""

    name: str = "femnist"
    noise: str = "xnoise"
    rounds: int = 20
    planned: int = 20
    fidelity: str = "full"
    mode: str = "malicious"
    protocol: str = "secagg"
    dropout: float = 1.0
    """How many drop out, relative to `LOSSES`."""
    stopped: str | None = "rounds"
    failing: bool = True
    budget: float = 6.0
    colluders: int = 1
    all_colluders: int | None = None
    beacon: str = ""
    """A file, by which the order of the clients is drawn."""


def make(root: Path, **changes: Any) -> Path:
    """Write a run, like the default kind but for some changes, and return its directory."""
    kind = replace(Kind(), **changes)
    rng, design = random.Random(kind.name + kind.noise), design_of(kind)
    records = RunRecords.create(root, manifest_of(kind, design), config="# synthetic\n")
    ledger = Ledger.create(records.path / LEDGER, records.id, design.budget) if design.proves else None
    turns = POPULATION // PER_ROUND
    for number in range(1, kind.rounds + 1):
        clients = tuple(range(number % turns, POPULATION, turns))
        record = round_of(kind, number, clients, rng)
        record = charged(records, design, ledger, record)
        records.finish(record, metrics_of(kind, number, rng), {"model": np.zeros(3)})
    if kind.stopped is not None:
        last = metrics_of(kind, kind.rounds, random.Random(0)).values if kind.rounds else {}
        spent = ledger.spent()[0] if kind.rounds and ledger else None
        records.close(RunOutcome(kind.stopped, kind.rounds, 150.5, spent, 1e-5, kind.fidelity, last, spent))
    return records.path


def design_of(kind: Kind) -> RoundPlan:
    # Planned for more rounds than there are, so that no strategy that stops at its budget has to.
    rounds = 20 if kind.noise == "orig" else 2 * max(20, kind.rounds)
    schedule = ParticipationSchedule(POPULATION, PER_ROUND, rounds)
    setting = Setting(schedule, dim=64, delta=1e-5, tolerance=19, colluders=kind.colluders)
    return RoundPlan(BY_NAME[kind.noise], setting, kind.budget)


def charged(records: RunRecords, design: RoundPlan, ledger: Ledger | None, record: RoundRecord) -> RoundRecord:
    """Charge a round to the ledger as a run would, save its receipt, and note what was spent."""
    parameters = design.agree_on(
        run=records.id, index=record.index, clients=record.clients, rotation=bytes(32), chunks=len(record.survivors)
    )
    lost = {u for stage in BEFORE_UPLOAD for u in record.dropped.get(stage, ())}
    outcomes = ended(parameters, *[lost] * len(parameters.chunks))
    charge = design.charge(parameters)
    if ledger is None or charge is None:
        return record
    ledger.reserve(charge)
    ledger.complete(record.index, outcomes)
    spent, head = ledger.spent()
    before = last_digest(records.path / RECEIPTS)
    Receipt.from_round(parameters, outcomes, "secagg", spent, head, before).save(records.path / RECEIPTS)
    return msgspec.structs.replace(record, epsilon=spent)


def manifest_of(kind: Kind, design: RoundPlan) -> Manifest:
    plan = PlanRecord(
        dim=1_018_174,
        bits=20,
        scale=512.25,
        clip=1.0,
        sigma=None if kind.noise == "none" else 1.46,
        epsilon=None if kind.noise == "none" else kind.budget,
        delta=1e-5,
        cap=math.ceil(kind.planned * PER_ROUND / POPULATION),
        threshold=26,
        tolerance=19,
        colluders=kind.colluders,
        all_colluders=kind.all_colluders,
        upload_bytes=2_650_112,
    )
    return Manifest(
        name=kind.name,
        created="2025-11-15T21:04:09.123456Z",
        version="0.1.0",
        config={
            "privacy": {"epsilon": kind.budget, "noise": {"kind": kind.noise}},
            "deployment": {"beacon": kind.beacon},
        },
        clients=POPULATION,
        per_round=PER_ROUND,
        rounds=kind.planned,
        noise=kind.noise,
        mechanism=design.mechanism.name,
        protocol=kind.protocol,
        mode=kind.mode,
        selection="balanced",
        fidelity=kind.fidelity,
        registry="ab" * 32,
        beacon="drand",
        plan=plan,
        trust=design.trust(kind.protocol != "plaintext", kind.fidelity != DEPLOYED),
        words=design.words,
        terms=ParticipationSchedule(POPULATION, PER_ROUND, kind.planned).terms(design.mechanism.noise_from.adversary),
    )


def round_of(kind: Kind, number: int, clients: tuple[int, ...], rng: random.Random) -> RoundRecord:
    dropped, left_over = {}, list(clients)
    for stage, mean in LOSSES.items():
        gone = min(len(left_over), rng.randint(0, math.ceil(2 * mean * kind.dropout)) if kind.dropout else 0)
        if gone:
            dropped[stage] = tuple(sorted(rng.sample(left_over, gone)))
            left_over = [u for u in left_over if u not in dropped[stage]]
    lost = sum(len(dropped.get(stage, ())) for stage in BEFORE_UPLOAD)
    wanted, left, charged = noise_of(kind, len(clients) - lost)
    failures = (
        (FailedAttempt(number, "19 clients answered Unmask, 26 are needed"),) if kind.failing and number == 7 else ()
    )
    return RoundRecord(
        number=number,
        index=number + (1 if kind.failing and number >= 7 else 0),
        started="2025-11-15T21:05:00.000000Z",
        seconds=sum(STAGES.values()),
        stages={stage: seconds * rng.uniform(0.85, 1.3) for stage, seconds in STAGES.items()},
        clients=clients,
        survivors=(len(clients) - lost,),
        dropped=dropped,
        up=None if kind.fidelity == "ideal" else 2_700_000 * (len(clients) - lost),
        down=None if kind.fidelity == "ideal" else 4_300_000 * (len(clients) - lost // 2),
        wanted=wanted,
        left=left,
        charged=charged,
        epsilon=None,
        failures=failures,
        invited=len(clients) + 3,
        model_bytes=None if kind.fidelity == "ideal" else 3_980_000 * len(clients),
    )


def noise_of(kind: Kind, survivors: int) -> tuple[float | None, float | None, float | None]:
    target = float(WANTED)
    if kind.noise == "none":
        return None, None, None
    if kind.noise == "central":
        return target, target, target
    if kind.noise == "local":
        return target * PER_ROUND, target * survivors, target
    reserve = 10 if kind.noise == "conservative" else 0
    plan = NoisePlan(SCHEMES.get(kind.noise, Scheme.ORIG), PER_ROUND, 19, kind.colluders, WANTED, reserve=reserve)
    u3 = range(survivors)
    return target, float(plan.variance_left(u3, b"")), float(plan.charged_variance(u3, b""))


def metrics_of(kind: Kind, number: int, rng: random.Random) -> RoundMetrics:
    best = {"none": 0.86, "central": 0.84, "local": 0.31, "orig": 0.82}.get(kind.noise, 0.81)
    accuracy = best * (1 - math.exp(-number / 5)) + rng.uniform(-0.01, 0.01)
    return RoundMetrics(number, {"loss": 2.3 * math.exp(-number / 8) + 0.4, "accuracy": accuracy})


def rewrite(path: Path, **changes: Any) -> None:
    """Change the manifest of a run on disk, as nobody should."""
    manifest = path / "manifest.json"
    manifest.write_bytes(msgspec.json.encode(msgspec.json.decode(manifest.read_bytes()) | changes))
