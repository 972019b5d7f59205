"""Set-up of a client: its installation, which the owner configures, and the participant or visitor that joins a run.

Paths: `identity` is the client's key file, `registry` the file of the signed registry, `state` the client's directory.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import msgspec
from cryptography import x509

from dordis.config.schema import RunConfig
from dordis.errors import DordisError, InputError, ParametersRefused
from dordis.identity.keys import ClientCredentials, Keys, load_client_credentials
from dordis.identity.registry import Registry, RevokedKeys, SignedRegistry, registry_with_helpers
from dordis.network import deployment
from dordis.network.authentication import LoginCredentials, utc_now
from dordis.network.client import Participant
from dordis.network.client_transfers import Address
from dordis.network.deployed_rounds import POLL
from dordis.network.log_lines import ClientRoundLog
from dordis.network.messages import Welcome
from dordis.network.visitor import Visitor
from dordis.owner.directory import ClientDirectory
from dordis.owner.manifest_checks import check_agreed, check_run_hash, read_manifest, run_beacon, run_members
from dordis.owner.policy import RECORD, Policy
from dordis.protocol import ClientId
from dordis.protocols.costs import noise_ratios
from dordis.protocols.summing import SummingProtocol
from dordis.records.manifest import DEPLOYED
from dordis.rounds.app import AppClient, AppForm
from dordis.rounds.client import Client
from dordis.rounds.records import ROOM, as_record_client, rehearse_records
from dordis.rounds.user_code import OwnerLog, UserCode, ZeroOnFailure, rehearse, user_code_for
from dordis.runs import job as preparing
from dordis.runs.job import Job
from dordis.runs.parties import build_client, policy_for
from dordis.runs.run import manifest_of
from dordis.selection.beacon import Beacon, FileBeacon, SeedBeacon

log = logging.getLogger("dordis.network")

LEAST_NOISE = Fraction(4, 5)
"""Least ratio of a round's noise to the planned noise that a client accepts; below 1, because of rounding."""


@dataclass(frozen=True)
class ClientInstallation:
    """Application, keys, state directory and agreed job (the configured run) of a client; no server provides them."""

    me: ClientId
    app: AppClient
    job: Job
    registry: Registry
    keys: Keys = field(repr=False)
    directory: ClientDirectory
    """The client's state that survives a restart."""
    published: FileBeacon | None = None
    """The beacon file that the owner reads; None if the run uses no beacon."""
    user_code: UserCode = field(default_factory=lambda: ZeroOnFailure(log.error))
    budget: float | None = None
    """Largest epsilon that the owner allows over all runs and servers; None for the epsilon of the configured run."""
    now: Callable[[], datetime] = utc_now
    revoked: tuple[RevokedKeys, ...] = ()
    """Revoked keys in the registry, oldest first; the manifest of a run that began earlier still lists them."""
    place: int | None = None
    """Zero-based index of the client among the members of the registry, for which `app` was made."""
    app_at: Callable[[int], AppClient] | None = None
    """Makes the application for another index: the client's index among a run's members may differ from `place`."""

    fidelity = DEPLOYED
    where = "on machines of their own"

    def __post_init__(self) -> None:
        if self.registry.get(self.me) != self.keys.identity():
            raise InputError(f"client {self.me} is not in the registry with these keys: get the newest registry")
        if self.job.has_beacon and self.published is None:
            raise InputError(
                "the selection of clients is verified with public randomness: set deployment.beacon to its file"
            )
        if self.budget is not None and not self.job.design.counts:
            raise InputError("a client cannot bound the cost of this run's rounds: leave the budget out")

    @property
    def beacon(self) -> Beacon:
        """Return the beacon; one of constant values if the run uses none."""
        return SeedBeacon(bytes(32)) if self.published is None else self.published

    @property
    def consents(self) -> tuple[str, ...]:
        """Return a clause of text for each permission that this owner's policy gives beyond the default policy."""
        return policy_for(self.job.design, self.job.protocol).consents

    def accept_run(self, welcome: Welcome) -> tuple[Registry, Beacon | None]:
        """Check a run, and record it; return its members and its beacon, if any; raise if the owner rejects the run."""
        check_run_hash(welcome.run, welcome.manifest)
        theirs = read_manifest(welcome.manifest, len(self.registry) + len(self.revoked))
        planned = self.job.config.federation.clients
        members = run_members(theirs, self.registry, self.revoked, self.me, planned)
        check_agreed(theirs, manifest_of(self.job, replace(self, registry=members), theirs.created))
        beacon = None
        if self.job.has_beacon and self.published is not None:
            beacon = run_beacon(theirs, self.published)
            if beacon.is_published(0):
                beacon.value(0)  # raises at log-in if the first line is older than the manifest
        self.directory.runs.accept(welcome.run, theirs.created, self.now(), self.job.config.deployment.runs_a_day)
        return members, beacon

    def create_client(self, welcome: Welcome) -> Client:
        """Return the client for a run, after restoring an open round; raise if the owner does not agree to the run."""
        if welcome.client != self.me:
            raise InputError(f"the server addresses client {welcome.client}, but this is client {self.me}")
        members, beacon = self.accept_run(welcome)
        journals = self.directory.journals
        client = build_client(
            self.me,
            self._app_in(members),
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
            receipts=self.directory.receipts,
            suite=self.job.suite,
            journals=journals,
            models=self.directory.models,
            user_code=self.user_code,
            form=AppForm.from_server(self.job.app),
        )
        for round in journals.unfinished():
            if round.startswith(welcome.run):
                client.restore(round)
        # A restored round may contain keys that were revoked since it began; new rounds with such keys are refused.
        client.registry = members.signing_keys(self._revoked_keys)
        return client

    @property
    def _revoked_keys(self) -> frozenset[str]:
        return frozenset(gone.keys.signing for gone in self.revoked)

    def _app_in(self, members: Registry) -> AppClient:
        """Return the application for the client's index among the members of a run."""
        place = list(members).index(self.me)
        if self.app_at is None or place == self.place:
            return self.app
        app = self.app_at(place)
        if self.job.design.record_encoding is not None:
            rehearse_client(replace(self, app=app))  # checks the records' gradients before the first round
        return app

    @property
    def policy(self) -> Policy:
        """Return the owner's policy: it allows the configured run, with at least LEAST_NOISE (80 %) of its noise."""
        design = self.job.design
        agreed = policy_for(design, self.job.protocol)
        noise = LEAST_NOISE * min(noise_ratios(design.example()))
        epsilon = agreed.epsilon if self.budget is None else self.budget
        trainings = self.job.config.deployment.trainings
        return msgspec.structs.replace(agreed, epsilon=epsilon, noise=noise, trainings=trainings)

    def describe_spending(self) -> str:
        """Return one line: epsilon spent, the owner's budget, and participations counted, over all runs and servers."""
        counted, budget = self.directory.participation(), self.policy.budget
        rounds = f"{counted.count()} rounds over all runs and servers"
        if budget is None:
            return f"this client has taken part in {rounds}; it has no budget of its own"
        spent, of = (
            budget.epsilon_spent(counted.spent(), counted.plans()),
            f"{budget.epsilon:.4g} at delta {budget.delta:.3g}",
        )
        return f"this client has spent epsilon {spent:.4g} of {of} in {rounds}"


def create_participant(
    url: str,
    config: RunConfig,
    seed: int,
    identity: Path,
    registry: Path,
    state: Path,
    trusted: Path | None = None,
    budget: float | None = None,
    others: tuple[RunConfig, ...] = (),
) -> Participant | Visitor:
    """Return an owner's unconnected client (in assisted rounds a visitor); raise InputError if a trial training fails.

    The owner agrees to `config`, `others` and epsilon `budget` (None: the run's).  `trusted`: in `LoginCredentials`.
    """
    failures, status = OwnerLog(), ClientDirectory(state).status
    installations = []
    for agreed in (config, *others):
        user_code = user_code_for(agreed.deployment.train_seconds, failures, status.note)
        deployable = deployment.deployable_config(agreed)
        credentials, installation = install(deployable, seed, identity, registry, state, user_code, budget)
        installations.append(installation)
        warn_of_slow_training(installation)
    log.info("%s", installations[0].describe_spending())
    address, allowed = Address.from_url(url), installations[0].policy.budget
    status.set_terms(str(address), None if allowed is None else (allowed.epsilon, allowed.delta))
    login = LoginCredentials(credentials, config.deployment.login == "mutual", trusted)
    owner = AgreedRuns(tuple(installations), registry, credentials.authority)
    rounds = ClientRoundLog(installations[0].describe_spending)
    if not owner.protocol.has_cohort:
        poll = config.deployment.poll or POLL
        return Visitor(
            address,
            login,
            owner.create_client,
            owner.protocol,
            poll,
            failures,
            status.note_event,
            rounds,
            installation.directory.receipts,
        )
    return Participant(
        address,
        login,
        owner.create_client,
        owner.protocol,
        failures=failures,
        receipts=installation.directory.receipts,
        events=status.note_event,
        rounds=rounds,
    )


@dataclass(frozen=True)
class AgreedRuns:
    """The runs that an owner agrees to, one installation per configuration; `registry` is read again for every run."""

    installations: tuple[ClientInstallation, ...]
    registry: Path
    authority: x509.Certificate

    def __post_init__(self) -> None:
        if len({one.job.protocol.name for one in self.installations}) > 1:
            raise InputError("the configurations of --config have several protocols: join each with a client")

    @property
    def protocol(self) -> SummingProtocol:
        """Return the summing protocol, which is the same in all configurations."""
        return self.installations[0].job.protocol

    def create_client(self, welcome: Welcome) -> Client:
        """Return the client of the first installation that agrees to the run; if none does, raise the first refusal."""
        refusal: DordisError | None = None
        for installation in self._current():
            try:
                return installation.create_client(welcome)
            except ParametersRefused as error:
                refusal = refusal or error
        raise refusal or InputError("no run was agreed to")

    def _current(self) -> tuple[ClientInstallation, ...]:
        """Return the installations with the registry read again; unchanged if its file cannot be used."""
        try:
            signed = SignedRegistry.load(self.registry, self.authority)
            self.installations[0].directory.remember(signed, self.authority)
            members = registry_with_helpers(signed, self.protocol.helper_ids)
            return tuple(
                replace(one, registry=members, revoked=signed.membership.revoked) for one in self.installations
            )
        except InputError as error:
            log.warning("the registry is not read again: %s", error)
            return self.installations


def warn_of_slow_training(installation: ClientInstallation) -> None:
    """Train once for trial, and log a warning if that took longer than `deployment.train_seconds`.

    Raise InputError if it fails, or, with records as the unit of privacy, if `check_record_seconds` finds it too slow.
    """
    seconds, agreed = rehearse_client(installation), installation.job.config.deployment.train_seconds
    if installation.job.config.privacy.unit == RECORD:
        check_record_seconds(seconds, agreed)
    elif agreed is not None and seconds > agreed:
        log.warning(
            "training took %.3g s on this machine, and deployment.train_seconds is %g: updates may be zero; agree on a "
            "larger value",
            seconds,
            agreed,
        )


@dataclass(frozen=True)
class ClientCheck:
    """The result of `dordis join --check`: seconds of training, description of the data, epsilon spent and budget."""

    seconds: float
    data: Mapping[str, str]
    spending: str


def check_client(
    config: RunConfig, seed: int, identity: Path, registry: Path, state: Path, budget: float | None = None
) -> ClientCheck:
    """Install a client as `install` does, and train four times; `seconds` is the longest training after the first."""
    deployable, user_code = deployment.without_simulation(config), ZeroOnFailure(log.error)
    _, installation = install(deployable, seed, identity, registry, state, user_code, budget)
    rehearse_client(installation)  # the warm-up, which compiles kernels and reads the data
    seconds = max(rehearse_client(installation) for _ in range(3))
    return ClientCheck(seconds, installation.app.describe_data(), installation.describe_spending())


def rehearse_client(installation: ClientInstallation) -> float:
    """Train once for trial, from the initial model, and return the seconds that this took.

    With records as the unit of privacy, train on the largest possible sample.  Raise InputError if the training fails.
    """
    job = installation.job
    clip, encoding = job.design.setting.clip, job.design.record_encoding
    if encoding is not None:
        return rehearse_records(as_record_client(installation.app), job.app, clip, encoding)
    return rehearse(installation.app, job.app, clip)


def check_record_seconds(seconds: float, agreed: float | None) -> None:
    """Raise InputError unless `agreed`, the run's train seconds, are set and at least ROOM (3) times `seconds`.

    `seconds` is the time of the largest sample.  With less room, reply times could reveal which records were sampled.
    """
    if agreed is None or agreed < ROOM * seconds:
        raise InputError(
            f"this client cannot join: the largest batch of records took {seconds:.3g} s on this machine, and "
            f"deployment.train_seconds is {'not set' if agreed is None else f'{agreed:g}'}: agree on "
            f"{ROOM * seconds:.2g} or more, so that the time of a reply does not depend on the sampled records"
        )


def install(
    config: RunConfig,
    seed: int,
    identity: Path,
    registry: Path,
    state: Path,
    user_code: UserCode,
    budget: float | None = None,
) -> tuple[ClientCredentials, ClientInstallation]:
    """Return a client's credentials and installation; `seed` is for the application, `budget` the owner's epsilon."""
    credentials = load_client_credentials(identity, utc_now())
    signed, directory = SignedRegistry.load(registry, credentials.authority), ClientDirectory(state)
    directory.remember(signed, credentials.authority)
    app, client_at = preparing.application(config, seed)
    job = deployment.require_deployable(preparing.prepare(config, app))
    members, revoked = registry_with_helpers(signed, job.protocol.helper_ids), signed.membership.revoked
    check_own_keys(credentials, signed, registry)
    check_not_helper(credentials.client, members)
    beacon = FileBeacon(Path(config.deployment.beacon)) if config.deployment.beacon else None
    place = min(list(members).index(credentials.client), job.config.federation.clients - 1)
    me, client_app, keys = credentials.client, client_at(place), credentials.keys
    return credentials, ClientInstallation(
        me,
        client_app,
        job,
        members,
        keys,
        directory,
        beacon,
        user_code=user_code,
        budget=budget,
        revoked=revoked,
        place=place,
        app_at=client_at,
    )


def check_own_keys(credentials: ClientCredentials, signed: SignedRegistry, path: Path) -> None:
    """Raise InputError if the client is not in the registry, or its keys were revoked."""
    gone = signed.revoked.get(credentials.keys.identity().signing.hex())
    if gone is not None:
        raise InputError(f"the keys of client {gone.client} ('{gone.keys.name}') were revoked on {gone.when[:10]}")
    if credentials.client not in signed.registry:
        raise InputError(f"client {credentials.client} is not in the registry {path}: get the newest registry")


def check_not_helper(client: ClientId, members: Registry) -> None:
    """Raise InputError if the client's id is that of a helper: a client and a helper have different ids and keys."""
    if client in members.helpers:
        raise InputError(f"id {client} is a helper of this run: dordis assist runs it, and a client needs other keys")


def with_client(config: RunConfig, app: str | None, data: str | None) -> RunConfig:
    """Return a configuration with the client's application class `app` and its option `data`, where given."""
    section = config.app
    if app is not None:
        section = msgspec.structs.replace(section, client=app)
    if data is not None:
        section = msgspec.structs.replace(section, options=section.options | {"data": data})
    return msgspec.structs.replace(config, app=section)
