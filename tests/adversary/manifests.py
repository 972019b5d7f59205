"""The server tries run ids and manifests until its colluders are selected together."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from dordis.config.schema import Deployment, Federation, Privacy, RunConfig
from dordis.config.schema import Protocol as ProtocolSection
from dordis.identity.registry import Member, Registry, RevokedKeys
from dordis.network.client_setup import ClientInstallation
from dordis.network.messages import Welcome
from dordis.owner.directory import ClientDirectory
from dordis.protocol import ClientId
from dordis.records.manifest import Manifest, encode_manifest
from dordis.rounds.app import FixedClient
from dordis.runs.job import Job, prepare
from dordis.runs.run import manifest_of
from dordis.selection.beacon import FileBeacon
from dordis.selection.selection import BalancedSelection
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.directories import LastMean
from tests.adversary.participants import COMPLETE, NEW_RUN, OUTSIDER, keys_of, registry
from tests.adversary.session import Foiled, Session

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUNS_A_DAY, TRIES = 3, 200
COLLUDERS = frozenset(sorted(registry())[:3])
FIRST = 4
"""The line of the beacon that a run begins with; those before were published when its manifest was made."""


@cache
def job_of(beacon: str = "", epsilon: float = 6.0) -> Job:
    """Return what an owner agrees to, or a server would rather have."""
    config = RunConfig(
        federation=Federation(clients=len(registry()), per_round=8, rounds=2),
        privacy=Privacy(epsilon=epsilon),
        protocol=ProtocolSection(colluders=len(COLLUDERS)),
        deployment=Deployment(beacon=beacon, train_seconds=1.0, runs_a_day=RUNS_A_DAY),
    )
    return prepare(config, LastMean())


def publish(folder: str) -> str:
    """Publish the beacon: a line a minute, of which those before `FIRST` are of the past."""
    path = Path(folder) / "published.txt"
    times = (NOW + timedelta(minutes=line - FIRST + 1) for line in range(2 * FIRST))
    path.write_text("".join(f"{time:%Y-%m-%dT%H:%M:%SZ} {line:064x}\n" for line, time in enumerate(times)))
    return str(path)


def installed(session: Session, folder: str, beacon: str = "") -> ClientInstallation:
    """Return the victim as its owner has installed it."""
    session.trail.stage = "log-in"
    app, directory = FixedClient(np.zeros(LastMean.dim)), ClientDirectory(Path(folder) / "state")
    published = FileBeacon(Path(beacon), first=FIRST) if beacon else None
    me = session.victim
    return ClientInstallation(me, app, job_of(beacon), registry(), keys_of(me), directory, published, now=lambda: NOW)


def manifest(victim: ClientInstallation, number: int = 0, job: Job | None = None) -> Manifest:
    """Return a good manifest, one of many, that is dated when the attack takes place."""
    created = NOW.replace(microsecond=number).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return manifest_of(job or victim.job, victim, created)


def welcome(victim: ClientInstallation, shown: Manifest) -> Welcome:
    """Return what a server says at log-in that shows this manifest."""
    data = encode_manifest(shown)
    return Welcome(victim.me, hashlib.sha256(data).digest(), data, bytes(32))


def forge(session: Session, change: Callable[[ClientInstallation], Welcome]) -> str:
    """Welcome the victim with something that its owner has not agreed to."""
    with TemporaryDirectory() as folder:
        victim = installed(session, folder)
        victim.create_client(change(victim))
    return "the victim takes part in a run that its owner has not agreed to"


def other_registry(victim: ClientInstallation) -> Welcome:
    """Show a manifest of members that the server chose."""
    fewer = Registry({u: identity for u, identity in registry().items() if u != OUTSIDER})
    return welcome(victim, msgspec.structs.replace(manifest(victim), registry=fewer.root().hex()))


def fewer_members(victim: ClientInstallation) -> Welcome:
    """Show a manifest as of a time before the newest member was approved."""
    *older, _ = victim.registry
    fewer = victim.registry.restrict(older)
    shown = msgspec.structs.replace(manifest(victim), registry=fewer.root().hex(), members=fewer.fingerprints())
    return welcome(victim, shown)


def bring_back(session: Session) -> str:
    """Begin a run with a member that the victim's registry says was revoked the day before."""
    with TemporaryDirectory() as folder:
        victim = installed(session, folder)
        shown, gone = manifest(victim), max(victim.registry)
        keys = Member.from_identity("colluder", victim.registry[gone])
        revoked = (RevokedKeys(gone, keys, f"{NOW - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}", "its keys leaked"),)
        left = victim.registry.restrict([u for u in victim.registry if u != gone])
        replace(victim, registry=left, revoked=revoked).create_client(welcome(victim, shown))
    return "the victim takes part in a run that began with a client whose keys had been revoked"


@attack(
    "a beacon that was known before the manifest",
    refused_by="check_later (ProtocolError)",
    stage="log-in",
    checks=(names.LATER,),
    graphs=(COMPLETE,),
)
def know_line(session: Session) -> str:
    """Make the manifest after the beacon line that it names was published, when the permutation can be computed."""
    with TemporaryDirectory() as folder:
        victim = installed(session, folder, publish(folder))
        victim.create_client(welcome(victim, msgspec.structs.replace(manifest(victim), first_line=FIRST - 2)))
    return "the victim takes part in a run whose selection was known when its run id was chosen"


@attack(
    "many runs, of which one suits",
    refused_by="check_runs_a_day (ParametersRefused)",
    stage="log-in",
    checks=(names.FEW_RUNS,),
    graphs=(COMPLETE,),
)
def show_many_runs(session: Session) -> str:
    """Begin many runs, look at who is scheduled in which round, and continue the run that suits."""
    with TemporaryDirectory() as folder:
        for number in range(RUNS_A_DAY + 1):  # a client that is started again remembers, too
            victim = installed(session, folder)
            victim.create_client(welcome(victim, manifest(victim, number)))
    return f"the victim joined {RUNS_A_DAY + 1} runs in a day"


@attack(
    "manifests tried until colluders are together",
    refused_by="the plan",
    stage="log-in",
    checks=(names.ROUND_COLLUDERS,),
    graphs=(COMPLETE,),
)
def try_manifests(session: Session) -> str:
    """Try manifests, and so run ids, until more colluders are scheduled in one round than its noise covers."""
    with TemporaryDirectory() as folder:
        victim, planned = installed(session, folder), prepare(job_of().config, LastMean()).design.setting
        drawn: list[frozenset[ClientId]] = []
        for number in range(TRIES):
            run = welcome(victim, manifest(victim, number)).run
            drawn.append(BalancedSelection(registry(), run, planned.clients, 1).window(0))
    most = max(len(COLLUDERS & window) for window in drawn)
    if most <= planned.colluders:
        raise Foiled("the plan", f"the noise covers {planned.colluders} colluders in a round, and there are {most}")
    return f"{most} colluders are in a round whose noise covers {planned.colluders}"


row = partial(Attack, graphs=(COMPLETE,))

ATTACKS: tuple[Attack, ...] = (
    row(
        "a run id that is not the hash of its manifest",
        "The server shows a valid manifest, and a run id that it chose so that its colluders are selected.",
        partial(forge, change=lambda victim: msgspec.structs.replace(welcome(victim, manifest(victim)), run=NEW_RUN)),
        refused_by="check_run_hash (ProtocolError)",
        stage="log-in",
        checks=(names.MANIFESTS + "check_run_hash",),
    ),
    row(
        "a manifest with another configuration",
        "The server's configuration has a larger epsilon than the victim's owner agreed to.",
        partial(forge, change=lambda victim: welcome(victim, manifest(victim, job=job_of(epsilon=60.0)))),
        refused_by="check_agreed (ParametersRefused)",
        stage="log-in",
        checks=(names.MANIFESTS + "check_agreed",),
    ),
    row(
        "a manifest of another registry",
        "The server omits or adds members, so that its colluders are selected.",
        partial(forge, change=other_registry),
        refused_by="check_agreed (ParametersRefused)",
        stage="log-in",
        checks=(names.MANIFESTS + "check_agreed",),
    ),
    row(
        "a manifest whose members are not the registry's",
        "The server omits the newest members and gives the root of the others, so that its colluders are selected.",
        partial(forge, change=fewer_members),
        refused_by="check_members (ParametersRefused)",
        stage="log-in",
        checks=(names.MANIFESTS + "check_members",),
    ),
    row(
        "a new run with a revoked member",
        "The server begins a run with a colluder whose keys were revoked before, as the victim's registry says.",
        bring_back,
        refused_by="check_revocations (ParametersRefused)",
        stage="log-in",
        checks=(names.REVOCATIONS,),
    ),
    know_line,
    show_many_runs,
    try_manifests,
)
