"""A client of a deployed run as its owner installs it: application, policy, keys, and what must survive a stop."""

import logging
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec

from dordis.errors import InputError
from dordis.federation.beacon import Beacon
from dordis.federation.client_directory import ClientDirectory
from dordis.federation.job import Job
from dordis.federation.owner import Owner, policy_of
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.selection import Balanced, Selection, Uniform, Verifiable
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
    beacon: Beacon | None = None
    user_code: UserCode = field(default_factory=lambda: ZeroOnFailure(log.error))

    def __post_init__(self) -> None:
        if self.me not in self.registry or self.registry[self.me] != self.keys.identity():
            raise InputError(f"client {self.me} is not in this registry with these keys: get the registry of the run")

    def client(self, welcome: Welcome) -> Client:
        """Return the client of a run, in the round that was under way when it stopped; another identity is refused."""
        if welcome.client != self.me:
            raise InputError(f"the server takes this for client {welcome.client}, and it is {self.me}")
        owner = Owner(
            self.me,
            self.policy,
            self.selection(welcome.run),
            self.directory.participation(),
            self.registry.root(),
            self.keys.vrf,
            self.beacon,
            self.job.design.kind,
            self.directory.trainings,
        )
        journals = self.directory.journals
        client = Client(
            self.me,
            self.app,
            owner,
            self.job.protocol,
            signing=self.keys.signing,
            registry=self.registry.signing_keys(),
            suite=self.job.suite,
            mechanism=self.job.design.kind,
            journals=journals,
            models=self.directory.models,
            user_code=self.user_code,
            form=AppForm.from_server(self.job.app),
        )
        for round in journals.unfinished():
            if round.startswith(welcome.run):
                client.restore(round)
        return client

    def selection(self, run: bytes) -> Selection:
        """Return how clients are selected in a run, as far as a client can tell."""
        federation, least = self.job.config.federation, self.job.design.setting.t
        match federation.selection:
            case "uniform":
                return Uniform(federation.per_round, bytes(32), least)
            case "vrf":
                if self.beacon is None:
                    raise InputError("selection 'vrf' is verified with public randomness: set deployment.beacon")
                indices = self.job.design.agreement.indices(federation.rounds)
                return Verifiable(self.registry, run, Fraction(federation.per_round), least, self.beacon, indices)
        return Balanced(self.registry, run, federation.per_round, least)

    @property
    def policy(self) -> Policy:
        """Return what the owner agrees to: the run as it is configured, and nothing less."""
        design = self.job.design
        agreed = policy_of(design, self.job.protocol.name)
        noise = LEAST_NOISE * min(noise_ratios(design.example()))
        return msgspec.structs.replace(agreed, noise=noise, trainings=self.job.config.deployment.trainings)
