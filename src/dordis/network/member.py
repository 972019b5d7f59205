"""A client of a deployed run as its owner installs it: application, policy, keys, and what must survive a stop."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

import msgspec

from dordis.errors import InputError
from dordis.federation.beacon import Beacon, FileBeacon, SeedBeacon
from dordis.federation.client_directory import ClientDirectory
from dordis.federation.job import Job
from dordis.federation.manifest import DEPLOYED
from dordis.federation.manifest_checks import beacon_of, check_agreed, check_members, check_run_hash, read_manifest
from dordis.federation.owner import policy_of
from dordis.federation.parties import build_client
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.run import manifest_of
from dordis.network.doors import utc
from dordis.network.messages import Welcome
from dordis.protocol import ClientId
from dordis.protocols.costs import noise_ratios
from dordis.rounds.app import AppClient, AppForm
from dordis.rounds.client import Client
from dordis.rounds.user_code import UserCode, ZeroOnFailure

log = logging.getLogger("dordis.network")

LEAST_NOISE = Fraction(4, 5)
"""Part of the planned noise below which a round is refused: cohorts of other sizes round a little differently."""


@dataclass(frozen=True)
class Installed:
    """What an owner has agreed to and installed: nothing of it comes from a server."""

    me: ClientId
    app: AppClient
    job: Job
    registry: Registry
    keys: Keys = field(repr=False)
    directory: ClientDirectory
    """For what must survive a stop."""
    published: FileBeacon | None = None
    """The public randomness that the owner reads from its source, where the run rests on one."""
    user_code: UserCode = field(default_factory=lambda: ZeroOnFailure(log.error))
    now: Callable[[], datetime] = utc

    fidelity = DEPLOYED
    where = "on machines of their own"

    def __post_init__(self) -> None:
        if self.me not in self.registry or self.registry[self.me] != self.keys.identity():
            raise InputError(f"client {self.me} is not in this registry with these keys: get the registry of the run")
        if self.job.has_beacon and self.published is None:
            raise InputError("who takes part is verified with public randomness: set deployment.beacon to its file")

    @property
    def beacon(self) -> Beacon:
        """Return the public randomness."""
        return SeedBeacon(bytes(32)) if self.published is None else self.published

    @property
    def consents(self) -> tuple[str, ...]:
        """Say what the owner allows that a policy refuses unless it is told otherwise."""
        return policy_of(self.job.design, self.job.protocol.name).consents

    def accept(self, welcome: Welcome) -> tuple[Registry, Beacon | None]:
        """Keep a run whose manifest says what this owner has agreed to; return its members, and the beacon if any."""
        check_run_hash(welcome.run, welcome.manifest)
        theirs = read_manifest(welcome.manifest, len(self.registry))
        check_members(theirs, self.registry, self.me)
        check_agreed(theirs, manifest_of(self.job, self, theirs.created))
        beacon = None
        if self.job.has_beacon and self.published is not None:
            beacon = beacon_of(theirs, self.published)
            if beacon.is_published(0):
                beacon.value(0)  # a first line that is not later than the manifest shows here, not in the first round
        self.directory.runs.accept(welcome.run, theirs.created, self.now(), self.job.config.deployment.runs_a_day)
        return self.registry.restrict(theirs.members or ()), beacon

    def client(self, welcome: Welcome) -> Client:
        """Return the client of a run, in the round that was under way when it stopped; another identity is refused."""
        if welcome.client != self.me:
            raise InputError(f"the server takes this for client {welcome.client}, and it is {self.me}")
        members, beacon = self.accept(welcome)
        journals = self.directory.journals
        client = build_client(
            self.me,
            self.app,
            self.job.protocol,
            self.policy,
            self.job.selection_rule.selection(members, welcome.run, beacon),
            self.directory.participation(),
            root=members.root(),
            vrf_key=self.keys.vrf,
            beacon=beacon,
            mechanism=self.job.design.kind,
            signing=self.keys.signing,
            registry=members.signing_keys(),
            trainings=self.directory.trainings,
            suite=self.job.suite,
            journals=journals,
            models=self.directory.models,
            user_code=self.user_code,
            form=AppForm.from_server(self.job.app),
        )
        for round in journals.unfinished():
            if round.startswith(welcome.run):
                client.restore(round)
        return client

    @property
    def policy(self) -> Policy:
        """Return what the owner agrees to: the run as it is configured, and nothing less."""
        design = self.job.design
        agreed = policy_of(design, self.job.protocol.name)
        noise = LEAST_NOISE * min(noise_ratios(design.example()))
        return msgspec.structs.replace(agreed, noise=noise, trainings=self.job.config.deployment.trainings)
