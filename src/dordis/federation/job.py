"""A configuration that holds together: whatever can be wrong with it shows here, before anything is written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import InputError
from dordis.federation.colluders import VRF, is_drawn, round_colluders
from dordis.federation.config import RunConfig
from dordis.federation.design import Design, ProtocolKind
from dordis.federation.parties import SelectionRule
from dordis.federation.retry import TRIES
from dordis.names import named, named_class
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.clipping import Clipping
from dordis.privacy.mechanisms import kind_of
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.planning import Setting
from dordis.privacy.projection import AUTO, OFF
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.summing import SummingProtocol
from dordis.protocols.table import summing_protocol
from dordis.rounds.app import AppClient, AppServer, Task


@dataclass(frozen=True)
class Job:
    """A configuration that holds together: the application, the protocol, and the privacy of its rounds."""

    config: RunConfig
    app: AppServer
    design: Design
    protocol: SummingProtocol
    suite: Suite

    @property
    def selection_rule(self) -> SelectionRule:
        """Return the selection rule of the configuration."""
        federation, agreement = self.config.federation, self.design.agreement
        indices = agreement.indices(federation.rounds)
        return SelectionRule(federation.selection, federation.per_round, self.design.least, agreement.drawn, indices)

    @property
    def needs_beacon_values(self) -> bool:
        """Tell whether every round uses its own beacon value, for its graph or its lots."""
        return self.protocol.sparse or self.config.federation.selection == VRF

    @property
    def has_beacon(self) -> bool:
        """Tell whether the run uses a beacon, for its graphs, its lots or its permutation."""
        selection, given = self.config.federation.selection, bool(self.config.deployment.beacon)
        return self.needs_beacon_values or is_drawn(selection, given)


def application(config: RunConfig, seed: int) -> tuple[AppServer, Callable[[int], AppClient]]:
    """Load the application that a configuration names: its server, and what makes the client at a place from 0 on."""
    task = Task(config.app.options, config.federation.clients, seed, Path(config.app.folder))
    app = named_class(config.app.server, AppServer, "app.server").of(task)  # type: ignore[type-abstract]
    kind = named_class(config.app.client, AppClient, "app.client")  # type: ignore[type-abstract]
    return app, lambda place: kind.of(task, place)


def prepare(config: RunConfig, app: AppServer) -> Job:
    """Check a configuration as a whole, and plan the noise."""
    protocol, suite = summing_protocol(config.protocol.use), suite_named(config.protocol.suite)
    check_together(config, protocol)
    check_cohort(config)
    drawn = is_drawn(config.federation.selection, bool(config.deployment.beacon))
    agreement = ProtocolKind(config.protocol.mode, protocol.sparse, drawn, max(TRIES, config.federation.tries))
    privacy = config.privacy
    kind = kind_of(privacy.mechanism) if privacy.mechanism else DSkellam
    design = Design(privacy.noise, setting_of(config, app, protocol), privacy.epsilon, agreement, kind)
    design = design.projected(privacy.projection if app.folds or privacy.projection != AUTO else OFF)
    check_folded(design)
    chunks = config.performance.fixed_chunks
    design.example(min(chunks, design.mechanism.grid.blocks) if design.setting.buckets else chunks)
    for dim in app.dims:
        design.of_dim(dim).example()
    return Job(config, app, design, protocol, suite)


def setting_of(config: RunConfig, app: AppServer, protocol: SummingProtocol) -> Setting:
    """Return what is given for the plan of the noise."""
    privacy, given, federation = config.privacy, config.protocol, config.federation
    clipping, has_beacon = Clipping.of(privacy.clip), bool(config.deployment.beacon)
    cohort = federation.clients, federation.per_round, given.colluders
    return Setting(
        ParticipationSchedule(federation.clients, federation.per_round, federation.rounds, privacy.accounting),
        dim=max(app.dims),
        clip=clipping.bound,
        delta=privacy.delta,
        bits=privacy.bits,
        threshold=given.threshold,
        tolerance=given.tolerance,
        colluders=round_colluders(federation.selection, has_beacon, *cohort, given.mode),
        share=clipping.share,
        sparse=protocol.sparse,
    )


def check_cohort(config: RunConfig) -> None:
    """Refuse numbers of clients that do not go together, by the keys that set them."""
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


def check_folded(design: Design) -> None:
    """Refuse to fold updates into no fewer coordinates than they have."""
    if isinstance(design.projection, int) and not design.setting.buckets:
        raise InputError(
            f"privacy.projection = {design.projection} is, in whole blocks, no less than the {design.setting.dim} "
            "coordinates of an update: take a smaller number, or 'auto'"
        )


def suite_named(name: str) -> Suite:
    """Return the cryptographic primitives that a configuration names."""
    return DEFAULT if name == "default" else named(name, "protocol.suite", Suite)


def check_together(config: RunConfig, protocol: SummingProtocol) -> None:
    """Refuse settings that contradict each other."""
    mode = config.protocol.mode
    if mode not in protocol.modes:
        raise InputError(
            f"the protocol '{config.protocol.use}' does not stand up to a {mode} server: set protocol.mode to "
            f"'{', '.join(sorted(protocol.modes))}', or use another protocol"
        )
    if mode == MALICIOUS and config.federation.selection == "uniform":
        raise InputError(
            "against a malicious server federation.selection is 'balanced' or 'vrf', which can be verified"
        )
    noise = config.privacy.noise
    if noise.mechanism and config.privacy.mechanism not in (None, noise.mechanism):
        raise InputError(f"the noise '{noise.name}' brings its own mechanism: leave privacy.mechanism out")
