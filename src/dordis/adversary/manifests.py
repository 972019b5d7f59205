"""A server that makes a run up: run ids and manifests that bring its colluders together."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.directories import LastMean
from dordis.adversary.participants import COMPLETE, NEW_RUN, OUTSIDER, keys_of, registry
from dordis.adversary.session import Foiled, Session
from dordis.federation.beacon import FileBeacon
from dordis.federation.client_directory import ClientDirectory
from dordis.federation.config import Deployment, Federation, Privacy, RunConfig
from dordis.federation.config import Protocol as ProtocolSection
from dordis.federation.job import Job, prepare
from dordis.federation.manifest import Manifest, encode_manifest
from dordis.federation.registry import Registry
from dordis.federation.run import manifest_of
from dordis.federation.selection import Balanced
from dordis.network.member import Installed
from dordis.network.messages import Welcome
from dordis.protocol import ClientId
from dordis.rounds.app import FixedClient

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


def installed(session: Session, folder: str, beacon: str = "") -> Installed:
    """Return the victim as its owner has installed it."""
    session.trail.stage = "log-in"
    app, directory = FixedClient(np.zeros(LastMean.dim)), ClientDirectory(Path(folder) / "state")
    published = FileBeacon(Path(beacon), first=FIRST) if beacon else None
    me = session.victim
    return Installed(me, app, job_of(beacon), registry(), keys_of(me), directory, published, now=lambda: NOW)


def manifest(victim: Installed, number: int = 0, job: Job | None = None) -> Manifest:
    """Return a good manifest, one of many, that is dated when the attack takes place."""
    created = NOW.replace(microsecond=number).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return manifest_of(job or victim.job, victim, created)


def welcome(victim: Installed, shown: Manifest) -> Welcome:
    """Return what a server says at log-in that shows this manifest."""
    data = encode_manifest(shown)
    return Welcome(victim.me, hashlib.sha256(data).digest(), data, bytes(32))


def forge(session: Session, change: Callable[[Installed], Welcome]) -> str:
    """Welcome the victim with something that its owner has not agreed to."""
    with TemporaryDirectory() as folder:
        victim = installed(session, folder)
        victim.client(change(victim))
    return "the victim takes part in a run that its owner has not agreed to"


def other_registry(victim: Installed) -> Welcome:
    """Show a manifest of members that the server chose."""
    fewer = Registry({u: identity for u, identity in registry().items() if u != OUTSIDER})
    return welcome(victim, msgspec.structs.replace(manifest(victim), registry=fewer.root().hex()))


def fewer_members(victim: Installed) -> Welcome:
    """Show a manifest that names the registry, and lists fewer members than it has."""
    shown = manifest(victim)
    members = {u: keys for u, keys in victim.registry.fingerprints().items() if u != OUTSIDER}
    return welcome(victim, msgspec.structs.replace(shown, members=members))


@attack("a beacon that was known before the manifest", checks=(names.LATER,), graphs=(COMPLETE,))
def know_line(session: Session) -> str:
    """Make a manifest when the line of the beacon that it names is published, and the permutation can be computed."""
    with TemporaryDirectory() as folder:
        victim = installed(session, folder, publish(folder))
        victim.client(welcome(victim, msgspec.structs.replace(manifest(victim), first_line=FIRST - 2)))
    return "the victim takes part in a run whose selection was known when its run id was chosen"


@attack("run after run until one suits", checks=(names.FEW_RUNS,), graphs=(COMPLETE,))
def show_many_runs(session: Session) -> str:
    """Begin one run after the other, look at who takes part in which round, and go on with the run that suits."""
    with TemporaryDirectory() as folder:
        for number in range(RUNS_A_DAY + 1):  # a client that is started again remembers, too
            victim = installed(session, folder)
            victim.client(welcome(victim, manifest(victim, number)))
    return f"the victim joined {RUNS_A_DAY + 1} runs in a day"


@attack("manifests tried until colluders are together", checks=(names.ROUND_COLLUDERS,), graphs=(COMPLETE,))
def try_manifests(session: Session) -> str:
    """Try manifests, and with them run ids, until more colluders are due in one round than its noise covers."""
    with TemporaryDirectory() as folder:
        victim, planned = installed(session, folder), prepare(job_of().config, LastMean()).design.setting
        drawn: list[frozenset[ClientId]] = []
        for number in range(TRIES):
            run = welcome(victim, manifest(victim, number)).run
            drawn.append(Balanced(registry(), run, planned.clients, 1).window(0))
    most = max(len(COLLUDERS & window) for window in drawn)
    if most <= planned.colluders:
        raise Foiled("the plan", f"the noise covers {planned.colluders} colluders in a round, and there are {most}")
    return f"{most} colluders are in a round whose noise covers {planned.colluders}"


row = partial(Attack, graphs=(COMPLETE,))

ATTACKS: tuple[Attack, ...] = (
    row(
        "a run id that is not the hash of its manifest",
        "The server shows a good manifest, and a run id that it has tried until its colluders are selected.",
        partial(forge, change=lambda victim: msgspec.structs.replace(welcome(victim, manifest(victim)), run=NEW_RUN)),
        checks=(names.MANIFESTS + "check_run_hash",),
    ),
    row(
        "a manifest with another configuration",
        "The server runs what the victim's owner has not agreed to: a larger epsilon.",
        partial(forge, change=lambda victim: welcome(victim, manifest(victim, job=job_of(epsilon=60.0)))),
        checks=(names.MANIFESTS + "check_agreed",),
    ),
    row(
        "a manifest of another registry",
        "The server leaves members out, or brings its own in, so that its colluders are selected.",
        partial(forge, change=other_registry),
        checks=(names.MANIFESTS + "check_agreed",),
    ),
    row(
        "a manifest whose members are not the registry's",
        "The server names the registry, and lists members of its choice, so that its colluders are selected.",
        partial(forge, change=fewer_members),
        checks=(names.MANIFESTS + "check_members",),
    ),
    know_line,
    show_many_runs,
    try_manifests,
)
