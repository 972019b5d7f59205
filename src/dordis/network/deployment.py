"""The server's side of a deployed run, and the checks of its configuration."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dordis.config.schema import RunConfig
from dordis.errors import InputError
from dordis.identity.certificates import load_certificate
from dordis.identity.keys import load_server_credentials
from dordis.identity.registry import Registry
from dordis.identity.signed_registry import SignedRegistry, registry_with_helpers
from dordis.network.authentication import Authenticator, utc_now
from dordis.network.population import NetworkPopulation
from dordis.owner.policy import ASSISTED, RECORD
from dordis.protocol import ClientId
from dordis.protocols.parameters import MALICIOUS
from dordis.records.run_records import REGISTRY
from dordis.runs import job as preparing
from dordis.runs.job import Job
from dordis.runs.run import Run


def deployable_config(config: RunConfig) -> RunConfig:
    """Return a configuration without its simulation settings; raise InputError if it cannot be deployed."""
    kept = without_simulation(config)
    check_train_seconds(kept)
    check_trainings(kept)
    check_helpers_named(kept)
    check_visitors_certified(kept)
    return kept


def without_simulation(config: RunConfig) -> RunConfig:
    """Return a configuration without its simulation settings; raise InputError if its noise can only be simulated."""
    if config.privacy.noise.cost_only:
        raise InputError(
            f"privacy.noise '{config.privacy.noise.name}' can only be simulated, not deployed: choose another"
        )
    return RunConfig(**{name: getattr(config, name) for name in RunConfig.__struct_fields__})


def with_public_test(config: RunConfig) -> RunConfig:
    """Return the server's configuration, with the path of the public test table as the application's option `test`.

    The table is the file in `deployment.test`; raise InputError if it is missing.
    """
    test = config.deployment.test
    if not isinstance(test, str):
        return config
    path = Path(config.app.folder, test)
    if not path.is_file():
        raise InputError(f"deployment.test: there is no file {path}; name a public table, or leave it out")
    section = msgspec.structs.replace(config.app, options=config.app.options | {"test": str(path.resolve())})
    return msgspec.structs.replace(config, app=section)


def check_train_seconds(config: RunConfig) -> None:
    """Raise InputError if `deployment.train_seconds` is required but missing, or not below the deadline of `Train`."""
    seconds = config.deployment.train_seconds
    if seconds is None:
        if config.privacy.unit == RECORD:
            raise InputError(
                "with privacy.unit = 'record' deployment.train_seconds must be set, so that the time of a reply does "
                "not depend on the sampled records: dordis join --check measures it on a client's machine"
            )
        if config.protocol.mode == MALICIOUS:
            raise InputError(
                "against a malicious server deployment.train_seconds must be set, so that the time of training reveals "
                "nothing about data: dordis join --check measures training on a client's machine"
            )
        return
    deadline = config.deployment.deadlines.stages.get("Train", math.inf)
    if deadline <= seconds:
        raise InputError(
            f"deployment.deadlines.stages.Train = {deadline:g} must be above deployment.train_seconds = {seconds:g}, "
            "because no client replies earlier: leave it out, or make it larger"
        )


def check_trainings(config: RunConfig) -> None:
    """Raise InputError unless owners allow more trainings (`deployment.trainings`) than a round has tries."""
    trainings, tries = config.deployment.trainings, config.federation.tries
    if trainings <= tries:
        raise InputError(
            f"deployment.trainings = {trainings} must be above federation.tries = {tries}: otherwise the tries of one "
            "round use up all trainings that an owner allows"
        )


def require_deployable(job: Job) -> Job:
    """Return the job; raise InputError if its protocol has neither a list of clients nor helpers: simulation only."""
    return job if job.protocol.assistance else preparing.require_cohort(job, "a deployment")


def check_members(members: Registry, job: Job) -> None:
    """Raise InputError unless the registry has `federation.clients` members, for which privacy is planned."""
    planned = job.config.federation.clients
    if len(members) != planned:
        raise InputError(
            f"the registry has {len(members)} {'clients' if members.helpers else 'members'}, but federation.clients is "
            f"{planned}: make them agree"
        )


def check_helpers_present(signed: SignedRegistry, helpers: Collection[ClientId]) -> None:
    """Raise InputError if one of `helpers`, the helpers of a new run, was revoked."""
    gone = {revoked.client for revoked in signed.membership.revoked} - signed.registry.keys()
    if revoked := sorted(gone.intersection(helpers)):
        raise InputError(f"helper {revoked[0]} was revoked: name another one in protocol.options.helpers")


def check_helpers_named(config: RunConfig) -> None:
    """Raise InputError unless a deployed run with helpers names them by their ids in the registry."""
    if config.protocol.use == ASSISTED and not isinstance(config.protocol.options.get("helpers"), list | tuple):
        raise InputError(
            "a deployed run names its helpers: set protocol.options.helpers to their ids in the registry, such as "
            "[13, 14, 15, 16]"
        )


def check_visitors_certified(config: RunConfig) -> None:
    """Raise InputError unless visiting clients use mutual TLS, which authenticates each of their requests."""
    if config.protocol.use == ASSISTED and config.deployment.login != "mutual":
        raise InputError("clients of assisted rounds show their certificates in TLS: set deployment.login = 'mutual'")


@dataclass(frozen=True)
class DeployedJob:
    """The server's side of a deployed run: its job, and the files of the server's keys and of the signed registry."""

    job: Job
    identity: Path
    registry: Path

    @classmethod
    def from_config(cls, config: RunConfig, seed: int, identity: Path, registry: Path) -> "DeployedJob":
        """Return the job of a configuration; raise InputError if it cannot be deployed."""
        config = deployable_config(config)
        app, _ = preparing.application(with_public_test(config), seed)
        return cls(require_deployable(preparing.prepare(config, app)), identity, registry)

    def start(self, root: Path, config: str) -> Run:
        """Return a new run with the present members of the registry, in a new directory below `root`."""
        members = self._current_members()
        return Run.start(self.job, NetworkPopulation(self.job, members, self._authenticator(members)), root, config)

    def resume(self, path: Path) -> Run:
        """Return a run resumed after its last finished round, with its initial members."""
        members = Registry.load(path / REGISTRY)
        population = NetworkPopulation.resume(self.job, members, self._authenticator(members), path)
        return Run.resume(self.job, population, path)

    def succeed(self, predecessor: Path, root: Path, config: str) -> Run:
        """Return a run with the registry's present members that continues model and ledger of a `predecessor`."""
        members = self._current_members()
        population = NetworkPopulation(self.job, members, self._authenticator(members))
        return Run.succeed(self.job, population, root, config, predecessor)

    def _current_members(self) -> Registry:
        credentials = load_server_credentials(self.identity, utc_now())
        signed = SignedRegistry.load(self.registry, credentials.authority)
        check_helpers_present(signed, self.job.protocol.helper_ids)
        members = registry_with_helpers(signed, self.job.protocol.helper_ids)
        check_members(members, self.job)
        return members

    def _authenticator(self, members: Registry) -> Authenticator:
        credentials = load_server_credentials(self.identity, utc_now())
        settings = self.job.config.deployment
        balancers = tuple(map(Path, settings.balancers))
        for path in balancers:
            load_certificate(path)  # raises now, not at the first log-in, if the file is unreadable
        return Authenticator(credentials, members, self.registry, settings.login == "mutual", balancers)
