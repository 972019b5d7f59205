"""A run of a single round with all clients of a simulated population: for means, profiles, rehearsals and demos."""

from collections.abc import Callable

from dordis.config.schema import RunConfig, Simulation
from dordis.crypto.suite import DEFAULT
from dordis.dropout_models import Dropout
from dordis.errors import InputError
from dordis.ledger.ledger import Ledger
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.scaling import Floats
from dordis.protocol import ClientId
from dordis.protocols.encoded_sums import Aggregate
from dordis.protocols.parameters import RUN_BYTES
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppClient, AppServer, FixedClient, RoundInfo
from dordis.rounds.engine import RoundRunner
from dordis.rounds.watch import Watch, silent
from dordis.runs.coordinator import Coordinator, FinishedRound
from dordis.runs.job import Job
from dordis.runs.plan import RoundPlan
from dordis.selection.selection import EveryClient, Selection
from dordis.simulation.population import Identities, SimulatedHome


class IdleServer(AppServer):
    """A server's application that ignores the sum."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def dim(self) -> int:
        """Return the length of an update."""
        return self._dim

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Ignore the sum."""


def first_ids(count: int) -> tuple[ClientId, ...]:
    """Return the default ids of clients: 1, 2, .. ."""
    return tuple(ClientId(u) for u in range(1, count + 1))


def home_of_updates(
    design: RoundPlan,
    protocol: SummingProtocol,
    update: Callable[[ClientId], Floats],
    entropy: Entropy,
    dropout: Dropout,
    fidelity: str = "full",
    ids: tuple[ClientId, ...] | None = None,
) -> SimulatedHome:
    """Return a population for rounds of a plan, in which client u has the update `update(u)`."""
    return home_of_clients(design, protocol, lambda u: FixedClient(update(u)), entropy, dropout, fidelity, ids)


def home_of_clients(
    design: RoundPlan,
    protocol: SummingProtocol,
    client: Callable[[ClientId], AppClient],
    entropy: Entropy,
    dropout: Dropout,
    fidelity: str = "full",
    ids: tuple[ClientId, ...] | None = None,
) -> SimulatedHome:
    """Return a population for rounds of a plan, in which client u has the application `client(u)`.

    The server's application ignores the sum.
    """
    ids = first_ids(design.setting.clients) if ids is None else ids
    job = Job(RunConfig(), IdleServer(design.setting.dim), design, protocol, DEFAULT)
    identities = Identities(entropy(SEED_BYTES), ids)
    settings = Simulation(fidelity="ideal" if fidelity == "ideal" else "full")
    return SimulatedHome(job, settings, client, identities, entropy, dropout)


def single_round(
    home: SimulatedHome,
    chunks: int = 1,
    rounds: Callable[[bytes, Selection], RoundRunner] | None = None,
    watch: Watch = silent,
    ledger: Ledger | None = None,
) -> FinishedRound:
    """Run one round of a population and return it; if it fails, raise its error, without another try.

    `rounds` makes a runner that replaces the population's.  A `ledger` is charged before the disclosure.  Owners count
    no participations, because the caller has all data anyway.
    """
    if ledger is not None and not home.job.design.proves:
        raise InputError("a round without a provable epsilon cannot be charged to a ledger: leave the ledger out")
    job, run = home.job, home.entropy(RUN_BYTES) if ledger is None else ledger.run
    selection = EveryClient(frozenset(home.identities.ids), run, job.design.setting.t)
    coordinator = Coordinator(
        run,
        job.app,
        job.design,
        selection,
        home.open(run, selection, {}) if rounds is None else rounds(run, selection),
        ledger,
        registry=home.root,
        beacon=home.beacon,
        watch=watch,
        tries=1,
        chunks=chunks,
        protocol=job.protocol.name,
        entropy=home.entropy,
        counts_owners=False,
    )
    return coordinator.round(1, 0 if ledger is None else ledger.last_index() + 1)
