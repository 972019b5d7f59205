"""Synthetic runs: plausible records of every noise strategy, written the way a run writes them."""

import math
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dordis.federation.design import Design
from dordis.federation.ledger import Budget, Charge, Ledger
from dordis.federation.records import LEDGER, Failed, Manifest, Metrics, PlanRecord, Records, Result, RoundRecord
from dordis.federation.strategies import TABLE
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.planning import Setting
from dordis.privacy.xnoise import NoisePlan, Scheme
from tests.federation.charged_rounds import ended, parameters_of

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


def make(root: Path, **changes: Any) -> Path:
    """Write a run, like the default kind but for some changes, and return its directory."""
    kind = replace(Kind(), **changes)
    rng = random.Random(kind.name + kind.noise)
    records = Records.create(root, manifest_of(kind), config="# synthetic\n")
    epsilon, turns = 0.0, POPULATION // PER_ROUND
    for number in range(1, kind.rounds + 1):
        clients = tuple(range(number % turns, POPULATION, turns))
        record = round_of(kind, number, clients, epsilon, rng)
        epsilon = record.epsilon or 0.0
        records.finish(record, metrics_of(kind, number, rng), {"model": np.zeros(3)})
    if kind.stopped is not None:
        last = metrics_of(kind, kind.rounds, random.Random(0)).values if kind.rounds else {}
        spent = epsilon if kind.rounds and kind.noise != "none" else None
        records.close(Result(kind.stopped, kind.rounds, 150.5, spent, 1e-5, kind.fidelity, last))
    return records.path


def manifest_of(kind: Kind) -> Manifest:
    plan = PlanRecord(
        dim=1_018_174,
        bits=20,
        scale=512.25,
        clip=1.0,
        sigma=None if kind.noise == "none" else 1.46,
        epsilon=None if kind.noise == "none" else kind.budget,
        delta=1e-5,
        cap=math.ceil(1.05 * kind.planned * PER_ROUND / POPULATION),
        threshold=26,
        tolerance=19,
        colluders=kind.colluders,
        upload_bytes=2_650_112,
    )
    strategy = BY_NAME[kind.noise]
    setting = Setting(
        ParticipationSchedule(POPULATION, PER_ROUND, 20), dim=64, delta=1e-5, tolerance=19, colluders=kind.colluders
    )
    design = Design(strategy, setting, kind.budget)
    return Manifest(
        name=kind.name,
        created="2025-11-15T21:04:09.123456Z",
        version="0.1.0",
        config={"privacy": {"epsilon": kind.budget, "noise": {"kind": kind.noise}}},
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
        trust=design.trust(kind.protocol != "plaintext", kind.fidelity == "ideal"),
        words=design.words,
        terms=design.terms,
    )


def round_of(kind: Kind, number: int, clients: tuple[int, ...], before: float, rng: random.Random) -> RoundRecord:
    dropped, left_over = {}, list(clients)
    for stage, mean in LOSSES.items():
        gone = min(len(left_over), rng.randint(0, math.ceil(2 * mean * kind.dropout)) if kind.dropout else 0)
        if gone:
            dropped[stage] = tuple(sorted(rng.sample(left_over, gone)))
            left_over = [u for u in left_over if u not in dropped[stage]]
    lost = sum(len(dropped.get(stage, ())) for stage in ("AdvertiseKeys", "ShareKeys", "CollectInput"))
    wanted, left, charged = noise_of(kind, len(clients) - lost)
    step = kind.budget / kind.planned / (charged / wanted if charged and wanted and kind.noise != "local" else 1.0)
    failures = (Failed(number, "19 clients answered Unmask, 26 are needed"),) if kind.failing and number == 7 else ()
    return RoundRecord(
        number=number,
        index=number + (1 if kind.failing and number >= 7 else 0),
        started="2025-11-15T21:05:00.000000Z",
        seconds=sum(STAGES.values()),
        stages={stage: seconds * rng.uniform(0.85, 1.3) for stage, seconds in STAGES.items()},
        clients=clients,
        survivors=(len(clients) - lost, len(clients) - lost),
        dropped=dropped,
        up=None if kind.fidelity == "ideal" else 2_700_000 * (len(clients) - lost),
        down=None if kind.fidelity == "ideal" else 4_300_000 * (len(clients) - lost // 2),
        wanted=wanted,
        left=left,
        charged=charged,
        epsilon=None if kind.noise == "none" else before + step,
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
    return target, float(plan.left(u3, b"")), float(plan.charged(u3, b""))


def metrics_of(kind: Kind, number: int, rng: random.Random) -> Metrics:
    best = {"none": 0.86, "central": 0.84, "local": 0.31, "orig": 0.82}.get(kind.noise, 0.81)
    accuracy = best * (1 - math.exp(-number / 5)) + rng.uniform(-0.01, 0.01)
    return Metrics(number, {"loss": 2.3 * math.exp(-number / 8) + 0.4, "accuracy": accuracy})


def add_ledger(path: Path, budget: float | None = 6.0) -> Path:
    """Give a run a real ledger, of one completed round and one that was charged without an output."""
    run = Records.open(path).id
    where = path / LEDGER
    ledger = Ledger.create(where, run, Budget(budget, 1e-5))
    first = parameters_of(0, run=run)
    ledger.reserve(Charge.of(first))
    ledger.complete(0, ended(first, {1}, {1}))
    ledger.reserve(Charge.of(parameters_of(1, run=run)))
    return where


def rewrite(path: Path, **changes: Any) -> None:
    """Change the manifest of a run on disk, as nobody should."""
    manifest = path / "manifest.json"
    manifest.write_bytes(msgspec.json.encode(msgspec.json.decode(manifest.read_bytes()) | changes))
