"""A validated configuration; all errors in a configuration are raised here, before any file is written.

A round without a list of clients is an assisted round: its clients are not fixed before the sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dordis.config.schema import Closing, RunConfig
from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import InputError
from dordis.ledger.combine_runs import PlannedRun, find_data_ledger
from dordis.loading import load_class, load_object
from dordis.owner.policy import CLIENT, RECORD
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.clipping import Clipping
from dordis.privacy.mechanisms import load_mechanism
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.projection import AUTO, OFF
from dordis.privacy.record_accounting import RecordSampling, count_events, sampling_word
from dordis.privacy.setting import Setting
from dordis.protocols import summing_protocol
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppClient, AppServer, Task, update_lengths
from dordis.rounds.records import RecordClient, as_record_client, check_records
from dordis.runs.parties import SelectionRule
from dordis.runs.plan import RoundPlan
from dordis.runs.retry import TRIES
from dordis.runs.threat_model import ThreatModel
from dordis.selection.colluders import OPEN, VRF, is_drawn, round_colluders
from dordis.selection.vrf_selection import describe_starvation


@dataclass(frozen=True)
class Job:
    """A validated configuration, with its application, round plan, protocol and cryptographic primitives."""

    config: RunConfig
    app: AppServer
    design: RoundPlan
    protocol: SummingProtocol
    suite: Suite

    @property
    def selection_rule(self) -> SelectionRule:
        """Return the selection rule that follows from configuration and plan."""
        federation, agreement = self.config.federation, self.design.agreement
        indices = agreement.indices(federation.rounds)
        return SelectionRule(
            selection_kind(self.config), federation.per_round, self.design.least, agreement.drawn, indices
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings of the plan, and a warning if VRF selection will leave later rounds too few clients."""
        federation, design = self.config.federation, self.design
        if selection_kind(self.config) != VRF or not design.proves:
            return design.warnings
        starved = describe_starvation(
            federation.clients, federation.per_round, federation.rounds, design.cap, design.least, federation.tries
        )
        return (*design.warnings, starved) if starved else design.warnings

    @property
    def needs_beacon_values(self) -> bool:
        """Tell whether every round uses its own beacon value, for its graph or its VRF selection."""
        return self.protocol.sparse or selection_kind(self.config) == VRF

    @property
    def has_beacon(self) -> bool:
        """Tell whether the run uses a beacon: for its graphs, its VRF selection, or the schedule of its clients."""
        selection, given = selection_kind(self.config), bool(self.config.deployment.beacon)
        return self.needs_beacon_values or is_drawn(selection, given)


def selection_kind(config: RunConfig) -> str:
    """Return `federation.selection`, or `open` if any registered client may contribute."""
    return OPEN if config.federation.arrival == OPEN else config.federation.selection


def closing_of(config: RunConfig) -> Closing:
    """Return the rule by which assisted rounds close: `federation.closing`, or the default rule if it is not set."""
    return config.federation.closing or Closing()


def application(config: RunConfig, seed: int) -> tuple[AppServer, Callable[[int], AppClient]]:
    """Load the application that a configuration names: its server, and a factory of clients by zero-based index."""
    check_record_column(config)
    folder, by_record = Path(config.app.folder), config.privacy.unit == RECORD
    task = Task(config.app.options, config.federation.clients, seed, folder, by_record, config.privacy.record)
    app = load_class(config.app.server, AppServer, "app.server").from_task(task)  # type: ignore[type-abstract]
    kind = load_class(config.app.client, AppClient, "app.client")  # type: ignore[type-abstract]
    if by_record:
        return app, lambda place: declared_client(kind.of_records(task, place), config)
    return app, lambda place: kind.from_task(task, place)


def prepare(config: RunConfig, app: AppServer) -> Job:
    """Return the job of a configuration, with its noise planned; raise InputError if settings contradict each other."""
    protocol, suite = protocol_named(config), suite_named(config.protocol.suite)
    check_together(config, protocol)
    check_cohort(config)
    check_closing(config, protocol)
    drawn = is_drawn(selection_kind(config), bool(config.deployment.beacon))
    agreement = ThreatModel(
        config.protocol.mode,
        protocol.sparse,
        drawn,
        max(TRIES, config.federation.tries),
        protocol.agree,
        protocol.has_cohort,
        config.federation.arrival == OPEN,
        all_colluders(config),
    )
    privacy = config.privacy
    kind = load_mechanism(privacy.mechanism) if privacy.mechanism else DSkellam
    design = RoundPlan(privacy.noise, setting_of(config, app, protocol), privacy.epsilon, agreement, kind)
    design = design.with_projection(privacy.projection if app.folds or privacy.projection != AUTO else OFF)
    check_folded(design)
    chunks = config.performance.fixed_chunks
    design.example(min(chunks, design.mechanism.grid.blocks) if design.setting.buckets else chunks)
    for dim in update_lengths(app):
        design.for_dim(dim).example()
    return Job(config, app, design, protocol, suite)


def require_cohort(job: Job, where: str) -> Job:
    """Return the job; raise InputError if its protocol fixes no list of clients, which the engine `where` needs."""
    if not job.protocol.has_cohort:
        raise InputError(
            f"the protocol '{job.protocol.name}' lists no clients, which {where} does not support yet: simulate it "
            "with simulation.engine = 'local', or use another protocol"
        )
    return job


def setting_of(config: RunConfig, app: AppServer, protocol: SummingProtocol) -> Setting:
    """Return the setting for the noise plan: participations, update length, clip bound, delta, dropouts, colluders."""
    privacy, given, federation = config.privacy, config.protocol, config.federation
    clipping, has_beacon = Clipping.from_config(privacy.clip), bool(config.deployment.beacon)
    cohort = federation.clients, federation.per_round, all_colluders(config)
    schedule = ParticipationSchedule(
        federation.clients, federation.per_round, federation.rounds, privacy.accounting, federation.participations
    )
    least = given.threshold if protocol.has_cohort else least_arrivals(config)
    return Setting(
        schedule,
        dim=max(update_lengths(app)),
        clip=clipping.bound,
        delta=privacy.delta,
        bits=privacy.bits,
        headroom=privacy.headroom,
        orders=schedule.orders,
        threshold=least,
        tolerance=given.tolerance if protocol.has_cohort else federation.per_round - (least or 0),
        colluders=round_colluders(selection_kind(config), has_beacon, *cohort, given.mode),
        further=(*clipping.further, *app.further),
        sparse=protocol.sparse,
        records=sampling_of(config),
    )


def sampling_of(config: RunConfig) -> RecordSampling | None:
    """Return the sampling of records, None if clients are the unit of privacy.

    Raise InputError if records are the unit and `privacy.records` is not set.
    """
    privacy = config.privacy
    if privacy.unit == CLIENT:
        return None
    if not privacy.records:
        raise InputError(
            "privacy.unit = 'record' needs privacy.records, the declared number of records of each client: a public "
            "number, at least as many as any client holds"
        )
    return RecordSampling(sampling_word(privacy.sampling), privacy.records, count_events(config.federation.rounds))


def declared_client(app: AppClient, config: RunConfig) -> RecordClient:
    """Return the application of a client as a `RecordClient`, which computes gradients of records.

    Raise InputError if the client has more records than `privacy.records`, the configured upper bound.
    """
    source = as_record_client(app)
    check_records(source, config.privacy.records)
    return source


def check_record_column(config: RunConfig) -> None:
    """Raise InputError if a column of record ids is named and clients are the unit of privacy."""
    if config.privacy.record and config.privacy.unit == CLIENT:
        raise InputError("privacy.record names the column of record ids: set privacy.unit = 'record' with it")


def all_colluders(config: RunConfig) -> int:
    """Return the bound on the number of colluders in the registry: `protocol.colluders`, by default 1.

    Raise InputError if the setting is missing with open arrival in the malicious mode, where it has no default.
    """
    given = config.protocol
    if given.colluders is None and given.mode == MALICIOUS and config.federation.arrival == OPEN:
        raise InputError(
            "with federation.arrival = 'open' a malicious server can admit all colluders of the registry to one round: "
            "set protocol.colluders to the number of them that the noise is to withstand"
        )
    return 1 if given.colluders is None else given.colluders


def least_arrivals(config: RunConfig) -> int:
    """Return n_min, the least number of clients of a round without a list of clients.

    It is `federation.per_round` less the tolerance; the default tolerance is half of `federation.per_round`.  Raise
    InputError if `protocol.threshold` is set: a round without a list of clients has no quorum of clients.
    """
    if config.protocol.threshold is not None:
        raise InputError(
            f"the protocol '{config.protocol.use}' has no quorum of clients: leave protocol.threshold out, and set "
            "protocol.tolerance to the number of clients that may be missing from federation.per_round"
        )
    T, most = config.protocol.tolerance, config.federation.per_round
    return most - most // 2 if T is None else most - T


def check_closing(config: RunConfig, protocol: SummingProtocol) -> None:
    """Raise InputError if `federation.closing` is set for a protocol that lists clients, or if it is out of range."""
    if not config.federation.closing:
        return
    if protocol.has_cohort:
        raise InputError(
            "federation.closing is for protocols that list no clients, such as 'assisted': leave it out, or use "
            f"another protocol than '{config.protocol.use}'"
        )
    at, least, most = config.federation.closing.clients, least_arrivals(config), config.federation.per_round
    if at is not None and not least <= at <= most:
        raise InputError(
            f"federation.closing.clients = {at} has to lie in {least}..{most}: from n_min, which is "
            "federation.per_round less protocol.tolerance, to federation.per_round"
        )


def check_cohort(config: RunConfig) -> None:
    """Raise InputError for contradictory numbers of clients; the error names the settings."""
    federation, protocol = config.federation, config.protocol
    n, t, T = federation.per_round, protocol.threshold, protocol.tolerance
    if n > federation.clients:
        raise InputError(
            f"federation.per_round = {n} is more than federation.clients = {federation.clients}: set both, a round "
            "has at most as many clients as there are"
        )
    if t is not None and not 1 <= t <= n:
        raise InputError(f"protocol.threshold = {t} has to lie in 1..{n}, the clients of a round: federation.per_round")
    if T is not None and not 0 <= T < n:
        raise InputError(f"protocol.tolerance = {T} has to lie below {n}, the clients of a round: federation.per_round")


def check_folded(design: RoundPlan) -> None:
    """Raise InputError if `privacy.projection` is a number of coordinates that would not make updates shorter."""
    if isinstance(design.projection, int) and not design.setting.buckets:
        raise InputError(
            f"privacy.projection = {design.projection} is, in whole blocks, no less than the {design.setting.dim} "
            "coordinates of an update: take a smaller number, or 'auto'"
        )


def protocol_named(config: RunConfig) -> SummingProtocol:
    """Return the protocol that a configuration names, constructed with `protocol.options`."""
    given, protocol = config.protocol, summing_protocol(config.protocol.use)
    if protocol.configure is not None:
        return protocol.configure(protocol, given.options, given.mode)
    if given.options:
        raise InputError(f"the protocol '{given.use}' has no options: leave protocol.options out")
    return protocol


def suite_named(name: str) -> Suite:
    """Return the cryptographic primitives that a configuration names."""
    return DEFAULT if name == "default" else load_object(name, "protocol.suite", Suite)


def check_together(config: RunConfig, protocol: SummingProtocol) -> None:
    """Raise InputError if protocol, mode, arrival, selection and noise of a configuration do not fit together."""
    mode = config.protocol.mode
    if mode not in protocol.modes:
        raise InputError(
            f"the protocol '{config.protocol.use}' does not withstand a {mode} server: set protocol.mode to "
            f"'{', '.join(sorted(protocol.modes))}', or use another protocol"
        )
    if protocol.has_cohort and config.federation.arrival == OPEN:
        raise InputError(
            f"the protocol '{config.protocol.use}' fixes the list of clients: set federation.arrival to 'invited', or "
            "use another protocol"
        )
    if not protocol.has_cohort and not protocol.verifies_selection and config.federation.arrival != OPEN:
        raise InputError(
            f"nobody verifies the selection of clients in the protocol '{config.protocol.use}': set federation.arrival "
            "to 'open', or use another protocol"
        )
    if config.federation.participations is not None and selection_kind(config) not in (OPEN, VRF):
        raise InputError(
            "federation.participations is for open arrival and selection 'vrf': leave it out, the public schedule "
            "says how often a client takes part"
        )
    if mode == MALICIOUS and selection_kind(config) == "uniform":
        raise InputError(
            "against a malicious server federation.selection is 'balanced' or 'vrf', which can be verified"
        )
    noise = config.privacy.noise
    if protocol.strategies is not None and noise.name not in protocol.strategies:
        raise InputError(
            f"the protocol '{config.protocol.use}' cannot be run with the noise '{noise.name}': set privacy.noise.kind "
            f"to one of {', '.join(sorted(protocol.strategies))}"
        )
    if noise.mechanism and config.privacy.mechanism not in (None, noise.mechanism):
        raise InputError(f"the noise '{noise.name}' has a mechanism of its own: leave privacy.mechanism out")


def plan_charge(
    job: Job, ledger: str | Path | None, limit: float | None, predecessor: Path | None = None
) -> PlannedRun | None:
    """Return the charge of a run to the ledger of its data set; None without a ledger.

    A run that continues a `predecessor` is charged to the same ledger as the predecessor.  `limit` is the budget of a
    new ledger, an epsilon.  Raise `BudgetExceeded` if the run would exceed the ledger's budget.
    """
    known = None if predecessor is None else find_data_ledger(predecessor)
    if known is not None and ledger is not None and Path(ledger).resolve() != known.resolve():
        raise InputError(f"the run at {predecessor} is charged to the ledger {known}: leave --ledger out")
    ledger = ledger if known is None else known
    if ledger is None:
        if limit is not None:
            raise InputError("a budget for several runs and queries needs a ledger to charge them to: name its file")
        return None
    design = job.design
    if job.config.privacy.unit != "client":
        raise InputError("a ledger is charged by client, and this run protects records: leave the ledger out")
    if not design.counts:
        raise InputError("the cost of this run's noise cannot be added to that of other runs: leave the ledger out")
    failure = design.agreement.failure(design.setting.participation.rounds)
    return PlannedRun.open(ledger, limit, job.config.name, design.budget, failure, predecessor)
