"""Balanced selection: a public schedule, so that every client knows who takes part in which round."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from dordis.crypto import kdf, prg
from dordis.crypto.prg import shuffle
from dordis.errors import InputError, ProtocolError
from dordis.identity.registry import Registry
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Invite
from dordis.selection.beacon import Beacon, check_index, check_run_id
from dordis.selection.selection import (
    NO_PROOFS,
    Proofs,
    SelectedClients,
    check_cohort,
    check_least_arrivals,
    check_member,
    check_run,
    select_at_least,
    validate_cohort_sizes,
)


class ScheduledSelection(ABC):
    """Selection by a public schedule.  The server may omit scheduled clients if at least `least` remain."""

    run: bytes
    least: int

    @property
    def is_drawn(self) -> bool:
        """Tell whether public randomness draws the clients."""
        return False

    @abstractmethod
    def window(self, index: int) -> frozenset[ClientId]:
        """Return the clients scheduled for a round."""

    @abstractmethod
    def times_scheduled(self, client: ClientId, index: int, rounds: int) -> int:
        """Return how often a client is scheduled in the `rounds` rounds that begin at this index."""

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return the scheduled clients that are available."""
        return tuple(sorted(self.window(index).intersection(available)))

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Return an empty proof; raise if this client is not scheduled."""
        check_run(invite, self.run)
        check_scheduled(me, invite.info.index, self.window(invite.info.index))
        return b""

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> SelectedClients:
        """Select the scheduled clients that are available."""
        return select_at_least(self.least, self.candidates(index, available))

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Raise if the list of clients U has unscheduled clients, lacks this one, or is below the least cohort."""
        check_run(parameters, self.run)
        if not isinstance(parameters, CohortParameters):
            check_least_arrivals(parameters, self.least)
            return
        check_member(parameters, me)
        check_cohort(parameters, self.least)
        check_all_scheduled(parameters, self.window(parameters.index))

    def verify_client(self, index: int, client: ClientId, proof: bytes) -> None:
        """Raise unless a client that contributes is scheduled for the round."""
        check_contributor_scheduled(client, index, self.window(index))


@dataclass(frozen=True)
class EveryClient(ScheduledSelection):
    """All of a fixed set of clients are scheduled for every round."""

    members: frozenset[ClientId]
    run: bytes
    least: int = 1

    def window(self, index: int) -> frozenset[ClientId]:
        """Return all members."""
        return self.members

    def times_scheduled(self, client: ClientId, index: int, rounds: int) -> int:
        """Return `rounds` for a member, and 0 for others."""
        return rounds if client in self.members else 0


@dataclass(frozen=True, eq=False)
class BalancedSelection(ScheduledSelection):
    """One fixed public permutation of all N clients: each round takes the next `count` of it, cyclically.

    In any R consecutive rounds every client is scheduled at most ceil(R count / N) times.  The permutation follows from
    the run id, the registry, and the value of round 0 of the `beacon`.  Without a beacon a server can choose a manifest
    whose permutation it likes: then T_C, the bound on a round's colluders, has to hold for the whole registry.
    """

    registry: Registry
    run: bytes
    count: int
    least: int
    beacon: Beacon | None = None

    def __post_init__(self) -> None:
        check_run_id(self.run)
        validate_cohort_sizes(self.count, self.least)
        if self.count > len(self.registry):
            raise InputError(f"{self.count} clients a round are more than the {len(self.registry)} registered")

    @property
    def is_drawn(self) -> bool:
        """Tell whether a beacon draws the permutation."""
        return self.beacon is not None

    @cached_property
    def permutation(self) -> tuple[ClientId, ...]:
        """Return all clients in the order in which they are scheduled."""
        beacon = b"" if self.beacon is None else self.beacon.value(0)
        seed = kdf.expand(self.run + self.registry.root() + beacon, b"dordis/v1/permutation", prg.STREAM_BYTES)
        return tuple(shuffle(list(self.registry), prg.Stream.from_bytes(seed)))

    def window(self, index: int) -> frozenset[ClientId]:
        """Return the clients scheduled for a round."""
        if index not in self._last_window:
            check_index(index)
            first, N = index * self.count, len(self.registry)
            self._last_window.clear()
            self._last_window[index] = frozenset(self.permutation[(first + i) % N] for i in range(self.count))
        return self._last_window[index]

    def times_scheduled(self, client: ClientId, index: int, rounds: int) -> int:
        """Return in how many of the `rounds` rounds from this index on the client is scheduled."""
        if client not in self._places:
            return 0
        first, N, place = index * self.count, len(self.registry), self._places[client]
        return (first + rounds * self.count - 1 - place) // N - (first - 1 - place) // N

    @cached_property
    def _places(self) -> dict[ClientId, int]:
        return {u: place for place, u in enumerate(self.permutation)}

    @cached_property
    def _last_window(self) -> dict[int, frozenset[ClientId]]:
        return {}  # all clients of a round ask for the same window


def check_scheduled(me: ClientId, index: int, window: frozenset[ClientId]) -> None:
    """Raise ProtocolError unless this client is scheduled for the round."""
    if me not in window:
        raise ProtocolError(f"client {me} was invited to round {index}, for which it is not scheduled")


def check_contributor_scheduled(client: ClientId, index: int, window: frozenset[ClientId]) -> None:
    """Raise ProtocolError unless a client that contributes is scheduled for the round."""
    if client not in window:
        raise ProtocolError(f"client {client} contributes to round {index}, for which it is not scheduled")


def check_all_scheduled(parameters: CohortParameters, window: frozenset[ClientId]) -> None:
    """Raise ProtocolError unless all clients that the parameters list are scheduled for this round."""
    if not window.issuperset(parameters.clients):
        raise ProtocolError("the round has clients that are not scheduled for it")
