"""A deployed run from its configuration: the server's side, and that of a client, as their owners set them up."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dordis.errors import InputError
from dordis.federation import job as preparing
from dordis.federation.beacon import FileBeacon
from dordis.federation.certificates import load_certificate
from dordis.federation.client_directory import ClientDirectory
from dordis.federation.config import RunConfig
from dordis.federation.identity import ClientCredentials, load_identity, load_server_identity
from dordis.federation.job import Job
from dordis.federation.membership import SignedRegistry
from dordis.federation.records import REGISTRY
from dordis.federation.registry import Registry
from dordis.federation.run import Run
from dordis.network.client import Participant
from dordis.network.doors import FederationDoor, FederationPass, utc
from dordis.network.home import NetworkHome
from dordis.network.member import Installed
from dordis.network.training import OwnerLog, rehearse, user_code_for
from dordis.network.transfers import Address
from dordis.protocols.parameters import MALICIOUS
from dordis.rounds.user_code import UserCode, ZeroOnFailure

log = logging.getLogger("dordis.network")


def deployed(config: RunConfig) -> RunConfig:
    """Return a configuration without its simulation settings; raise InputError if it cannot be deployed."""
    kept = without_simulation(config)
    check_train_seconds(kept)
    check_trainings(kept)
    return kept


def without_simulation(config: RunConfig) -> RunConfig:
    """Return a configuration without its simulation settings; raise if its noise is only simulated."""
    if config.privacy.noise.cost_only:
        raise InputError(f"only the cost of '{config.privacy.noise.name}' is simulated: it cannot be deployed")
    return RunConfig(**{name: getattr(config, name) for name in RunConfig.__struct_fields__})


def check_train_seconds(config: RunConfig) -> None:
    """In the malicious mode the time of training is fixed, and the deadline of training is longer."""
    seconds = config.deployment.train_seconds
    if seconds is None:
        if config.protocol.mode == MALICIOUS:
            raise InputError(
                "against a malicious server deployment.train_seconds must be set, so that the time of training reveals "
                "nothing about data: dordis join --check measures training on a client's machine"
            )
        return
    waits = config.deployment.deadlines.stages.get("Train", math.inf)
    if waits <= seconds:
        raise InputError(
            f"deployment.deadlines.stages.Train = {waits:g} is not above deployment.train_seconds = {seconds:g}: "
            "no client would be ready in time; leave it out, or make it larger"
        )


def check_trainings(config: RunConfig) -> None:
    """An owner allows more trainings than one round has tries."""
    trainings, tries = config.deployment.trainings, config.federation.tries
    if trainings <= tries:
        raise InputError(
            f"deployment.trainings = {trainings} must be above federation.tries = {tries}: otherwise the tries of one "
            "round use up all trainings that an owner allows"
        )


@dataclass(frozen=True)
class DeployedJob:
    """The server's side: its identity, and the registry that the authority signed."""

    job: Job
    identity: Path
    registry: Path

    @classmethod
    def of(cls, config: RunConfig, seed: int, identity: Path, registry: Path) -> "DeployedJob":
        """Check a configuration as a whole."""
        config = deployed(config)
        app, _ = preparing.application(config, seed)
        return cls(preparing.prepare(config, app), identity, registry)

    def start(self, root: Path, config: str) -> Run:
        """Begin a run in a directory of its own, with the members that there are now."""
        members = self._members()
        return Run.start(self.job, NetworkHome(self.job, members, self._door(members)), root, config)

    def resume(self, path: Path) -> Run:
        """Go on with a run after its last finished round."""
        members = Registry.load(path / REGISTRY)
        return Run.resume(self.job, NetworkHome.resume(self.job, members, self._door(members), path), path)

    def succeed(self, predecessor: Path, root: Path, config: str) -> Run:
        """Begin a run with the members that there are now, which carries on what another one has made and spent."""
        members = self._members()
        home = NetworkHome(self.job, members, self._door(members))
        return Run.succeed(self.job, home, root, config, predecessor)

    def _members(self) -> Registry:
        credentials = load_server_identity(self.identity, utc())
        members = SignedRegistry.load(self.registry, credentials.authority).registry
        check_members(members, self.job)
        return members

    def _door(self, members: Registry) -> FederationDoor:
        credentials = load_server_identity(self.identity, utc())
        mutual = self.job.config.deployment.login == "mutual"
        balancers = tuple(map(Path, self.job.config.deployment.balancers))
        for path in balancers:
            load_certificate(path)  # what cannot be read shows now, not when somebody logs in
        return FederationDoor(credentials, members, self.registry, mutual, balancers)


def participant(
    url: str, config: RunConfig, seed: int, identity: Path, registry: Path, state: Path, trusted: Path | None = None
) -> Participant:
    """Set up a client as its owner configured it, and train once from the initial model; raise if that fails."""
    failures = OwnerLog()
    user_code = user_code_for(config.deployment.train_seconds, failures, ClientDirectory(state).status.note)
    credentials, installed = install(deployed(config), seed, identity, registry, state, user_code)
    took, agreed = rehearse_client(installed), config.deployment.train_seconds
    if agreed is not None and took > agreed:
        log.warning(
            "training took %.3g s on this machine, and deployment.train_seconds is %g: updates may be zero; agree on a "
            "larger value",
            took,
            agreed,
        )
    job, mutual = installed.job, config.deployment.login == "mutual"
    door = FederationPass(credentials, mutual, trusted)
    return Participant(Address.of(url), door, installed.client, job.protocol, failures=failures)


def measure_training(config: RunConfig, seed: int, identity: Path, registry: Path, state: Path) -> float:
    """Return the longest time of three trainings on this machine, in seconds, after one to warm up."""
    user_code = ZeroOnFailure(log.error)
    _, installed = install(without_simulation(config), seed, identity, registry, state, user_code)
    rehearse_client(installed)  # compiles and reads once
    return max(rehearse_client(installed) for _ in range(3))


def rehearse_client(installed: Installed) -> float:
    """Train once from the application's own initial model; return the seconds."""
    return rehearse(installed.app, installed.job.app, installed.job.design.setting.clip)


def install(
    config: RunConfig, seed: int, identity: Path, registry: Path, state: Path, user_code: UserCode
) -> tuple[ClientCredentials, Installed]:
    """Load application, keys and registry of a client, and open its state directory."""
    credentials = load_identity(identity, utc())
    signed, directory = SignedRegistry.load(registry, credentials.authority), ClientDirectory(state)
    directory.remember(signed, credentials.authority)
    members = signed.registry
    app, client_at = preparing.application(config, seed)
    job = preparing.prepare(config, app)
    check_members(members, job)
    if credentials.client not in members:
        raise InputError(f"client {credentials.client} is not in the registry {registry}: get the one of the run")
    beacon = FileBeacon(Path(config.deployment.beacon)) if config.deployment.beacon else None
    place = list(members).index(credentials.client)
    keys = credentials.keys
    return credentials, Installed(
        credentials.client, client_at(place), job, members, keys, directory, beacon, user_code=user_code
    )


def check_members(members: Registry, job: Job) -> None:
    """The registry has as many clients as the run is configured for: its privacy is planned for that number."""
    wanted = job.config.federation.clients
    if len(members) != wanted:
        raise InputError(f"the registry has {len(members)} members, federation.clients is {wanted}: make them agree")


def with_client(config: RunConfig, app: str | None, data: str | None) -> RunConfig:
    """Return a configuration with the application and the data of one client."""
    given = config.app
    if app is not None:
        given = msgspec.structs.replace(given, client=app)
    if data is not None:
        given = msgspec.structs.replace(given, options=given.options | {"data": data})
    return msgspec.structs.replace(config, app=given)
