"""One round of all clients of a home, of a run that has no other: for means, profiles, rehearsals and demos."""

from collections.abc import Callable

from dordis.crypto.suite import DEFAULT
from dordis.errors import InputError
from dordis.federation.config import RunConfig
from dordis.federation.coordinator import Coordinator, Finished
from dordis.federation.design import Design
from dordis.federation.job import Job
from dordis.federation.ledger import Ledger
from dordis.federation.selection import Everyone, Selection
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId
from dordis.protocols.distributed_dp import Aggregate
from dordis.protocols.parameters import RUN_BYTES
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppServer, FixedClient, RoundInfo
from dordis.rounds.server import Rounds, Watch, silent
from dordis.simulation.availability import Dropout
from dordis.simulation.config import Simulation
from dordis.simulation.home import Identities, SimulatedHome


class IdleServer(AppServer):
    """A server that uses nothing."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def dim(self) -> int:
        """Return the length of an update."""
        return self._dim

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Do nothing."""


def first_ids(count: int) -> tuple[ClientId, ...]:
    """Return the ids of clients that have no others: 1, 2, .. ."""
    return tuple(ClientId(u) for u in range(1, count + 1))


def home_of_updates(
    design: Design,
    protocol: SummingProtocol,
    update: Callable[[ClientId], Floats],
    entropy: Entropy,
    dropout: Dropout,
    fidelity: str = "full",
    ids: tuple[ClientId, ...] | None = None,
) -> SimulatedHome:
    """Return a home of the clients of a design, 1, 2, .. or `ids`, with their updates; its server uses nothing."""
    ids = first_ids(design.setting.clients) if ids is None else ids
    job = Job(RunConfig(), IdleServer(design.setting.dim), design, protocol, DEFAULT)
    identities = Identities(entropy(SEED_BYTES), ids)
    settings = Simulation(fidelity="ideal" if fidelity == "ideal" else "full")
    return SimulatedHome(job, settings, lambda u: FixedClient(update(u)), identities, entropy, dropout)


def single_round(
    home: SimulatedHome,
    chunks: int = 1,
    rounds: Callable[[bytes, Selection], Rounds] | None = None,
    watch: Watch = silent,
    ledger: Ledger | None = None,
) -> Finished:
    """Run the round once; whatever fails is raised.  `rounds` replaces the home's own.

    A `ledger` is charged before anything is disclosed.  Participations are not counted: whoever asks has all the data.
    """
    if ledger is not None and not home.job.design.proves:
        raise InputError("a round that proves nothing is not charged to a ledger")
    job, run = home.job, home.entropy(RUN_BYTES) if ledger is None else ledger.run
    selection = Everyone(frozenset(home.identities.ids), run, job.design.setting.t)
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
