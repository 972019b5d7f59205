"""Selection of a round's clients: the interface of all methods, the uniform and the balanced method, and open arrival.

The server selects U, the clients of a round, and every client verifies that the method can have selected this U.  In an
assisted round there is no U: any client that was selected may contribute, and server and helpers verify the selection
of each client that does.  `UniformSelection` cannot be verified and is for semi-honest servers.  `BalancedSelection`
and `VrfSelection` bind a malicious server: it may leave clients out, down to the *least cohort* (the smallest allowed
number of clients in a round), but it cannot bring in a client that was not selected.  For this, three things must
happen in this order: the registry is closed, the run id is fixed, and the beacon becomes known.

A server that breaks this order can make many manifests, each with another run id and therefore another selection, and
use the manifest that selects most colluders.  Even if it tries 2^64 manifests, the probability that any of them selects
more than T_C colluders for a round is at most 2^-40.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from dordis.crypto import kdf, prg
from dordis.crypto.prg import shuffle
from dordis.errors import InputError, ParametersRefused, ProtocolError, TooFewClients
from dordis.identity.registry import Registry
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.parameters import MALICIOUS, RUN_BYTES, Parameters
from dordis.rounds.invitation import Invite
from dordis.selection.beacon import Beacon, check_index, check_run_id
from dordis.selection.colluders import largest_draw_failure

Proofs = Mapping[ClientId, bytes]
NO_PROOFS: Proofs = MappingProxyType({})


@dataclass(frozen=True)
class SelectedClients:
    """The clients U of a round in ascending order, and each client's proof of selection, if the method has any."""

    clients: tuple[ClientId, ...]
    proofs: dict[ClientId, bytes] = field(default_factory=dict)


class Selection(Protocol):
    """A selection method: the server selects the clients U of a round; a client proves its selection and verifies U."""

    @property
    def is_drawn(self) -> bool:
        """Tell whether public randomness draws the clients."""

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return those of the `available` clients that are invited to a round."""

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Return the proof of selection (empty if none is needed), or None if this client was not selected.

        Raise for an invitation that this method cannot have produced.
        """

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> SelectedClients:
        """Select U, the clients of a round; raise `TooFewClients` if they would be fewer than the least cohort."""

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Raise if this method cannot have selected U, the clients of a round, or if this client is not in U.

        If the parameters have no list U, raise if they allow a sum over fewer clients than the least cohort.
        """

    def verify_client(self, index: int, client: ClientId, proof: bytes) -> None:
        """Raise unless `client`, which is registered, was selected for a round; `proof` is its proof of selection.

        In rounds without a list U, the server and the helpers call this for each client that contributes.
        """


def draw_failure_probability(selection: Selection) -> Fraction:
    """Return a bound on the chance that more than T_C colluders are drawn; 0 if `selection.is_drawn` is False."""
    return largest_draw_failure() if selection.is_drawn else Fraction(0)


def check_run(received: Parameters | Invite, run: bytes) -> None:
    """Raise ProtocolError unless the run id is `run`: a server that may change the run id can steer the selection."""
    if received.round[:RUN_BYTES] != run:
        raise ProtocolError("this round belongs to another run")


def check_member(parameters: CohortParameters, me: ClientId) -> None:
    """Raise ParametersRefused unless this client is one of the round's clients."""
    if me not in parameters.rank:
        raise ParametersRefused(f"client {me} is not among the clients of this round")


def check_cohort(parameters: CohortParameters, least: int) -> None:
    """Raise ParametersRefused if the round has fewer clients than the least cohort."""
    if len(parameters.clients) < least:
        raise ParametersRefused(f"a round of {len(parameters.clients)} clients is below the least cohort of {least}")


def select_at_least(least: int, clients: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> SelectedClients:
    """Return `clients` as the selected clients of a round; raise `TooFewClients` if they are fewer than `least`."""
    if len(clients) < least:
        raise TooFewClients("the selection", len(clients), least)
    return SelectedClients(tuple(sorted(clients)), dict(proofs))


def validate_cohort_sizes(count: int, least: int) -> None:
    """Raise InputError unless the least cohort is between 1 and `count`, the number of clients to select."""
    if not 1 <= least <= count:
        raise InputError(f"need 1 <= least <= count, not {least} and {count}")


@dataclass(frozen=True, repr=False)
class UniformSelection:
    """Selection by the server: a uniformly random set of `count` available clients, or all if fewer are available."""

    count: int
    seed: bytes
    least: int = 1
    is_drawn = False

    def __post_init__(self) -> None:
        validate_cohort_sizes(self.count, self.least)

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return the clients that `select` draws for the round."""
        return self.select(index, available).clients

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Return an empty proof; raise in the malicious mode, because nobody can verify the server's choice."""
        check_semi_honest(invite.terms.mode)
        return b""

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> SelectedClients:
        """Draw the clients of the round, U, with randomness from the seed and the round's index."""
        check_index(index)
        stream = prg.Stream.from_bytes(kdf.expand(self.seed, b"dordis/v1/uniform/%d" % index, prg.STREAM_BYTES))
        return select_at_least(self.least, shuffle(sorted(set(available)), stream)[: self.count])

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Raise in the malicious mode, because no client can verify a random draw of the server.

        Raise also if U lacks this client, or, without U, if the round allows a sum of fewer clients than `least`.
        """
        check_semi_honest(parameters.mode)
        if isinstance(parameters, CohortParameters):
            check_member(parameters, me)
        else:
            check_least_arrivals(parameters, self.least)

    def verify_client(self, index: int, client: ClientId, proof: bytes) -> None:
        """Raise nothing: the server is trusted to draw the clients."""


def check_semi_honest(mode: str) -> None:
    """Raise in the malicious mode: uniform selection cannot be verified."""
    if mode == MALICIOUS:
        raise ParametersRefused(
            "against a malicious server selection must be 'balanced' or 'vrf', which can be verified"
        )


@dataclass(frozen=True, eq=False)
class OpenArrival:
    """No selection: the server admits any registered client, so T_C must bound the colluders in the whole registry.

    In a simulation the clients come in a random order, which is derived from `seed`.
    """

    registry: Registry
    run: bytes
    least: int
    seed: bytes = bytes(32)
    is_drawn = False

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return the available clients in the order in which they arrive in a simulation."""
        return arrival_order(self.seed, index, available)

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Return an empty proof; raise for an invitation to a round of another run."""
        check_run(invite, self.run)
        return b""

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> SelectedClients:
        """Raise InputError: no cohort is fixed before the sum."""
        raise InputError("with open arrival no cohort is selected: use a protocol that takes clients as they come")

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Raise if the parameters are of another run, list clients, or allow a sum over fewer than `least` clients."""
        check_run(parameters, self.run)
        check_no_list(parameters)
        check_least_arrivals(parameters, self.least)

    def verify_client(self, index: int, client: ClientId, proof: bytes) -> None:
        """Raise nothing: any registered client may contribute."""


def arrival_order(seed: bytes, index: int, clients: Collection[ClientId]) -> tuple[ClientId, ...]:
    """Return the clients in the order in which they come to a simulated round, drawn from seed and round index."""
    check_index(index)
    stream = prg.Stream.from_bytes(kdf.expand(seed, b"dordis/v1/arrival/%d" % index, prg.STREAM_BYTES))
    return tuple(shuffle(sorted(set(clients)), stream))


def check_no_list(parameters: Parameters) -> None:
    """Raise ParametersRefused if the parameters list clients: the server could have listed colluders only."""
    if parameters.clients:
        raise ParametersRefused("the round lists its clients, although any registered client may contribute")


def check_least_arrivals(parameters: Parameters, least: int) -> None:
    """Raise ParametersRefused if a sum may be over fewer clients than the least cohort of the run."""
    if parameters.n_min < least:
        raise ParametersRefused(f"a sum over {parameters.n_min} clients is below the least cohort of {least}")


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
        """Return how often a client is scheduled in `rounds` consecutive rounds, of which the first has this index."""

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return the scheduled clients that are available."""
        return tuple(sorted(self.window(index).intersection(available)))

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Return an empty proof; raise if this client is not scheduled, or if the invitation is of another run."""
        check_run(invite, self.run)
        check_scheduled(me, invite.info.index, self.window(invite.info.index))
        return b""

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> SelectedClients:
        """Select the scheduled clients among `available`; raise TooFewClients if they are fewer than `least`."""
        return select_at_least(self.least, self.candidates(index, available))

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Raise if U has clients that are not scheduled, lacks this client, or is smaller than the least cohort.

        In a round without a list U, raise if a sum may be over fewer clients than the least cohort.  Raise also if the
        parameters are those of another run.
        """
        check_run(parameters, self.run)
        if not isinstance(parameters, CohortParameters):
            check_least_arrivals(parameters, self.least)
            return
        check_member(parameters, me)
        check_cohort(parameters, self.least)
        check_all_scheduled(parameters, self.window(parameters.index))

    def verify_client(self, index: int, client: ClientId, proof: bytes) -> None:
        """Raise ProtocolError if a contributing `client` is not scheduled for the round."""
        check_contributor_scheduled(client, index, self.window(index))


@dataclass(frozen=True)
class EveryClient(ScheduledSelection):
    """All of a fixed set of clients are scheduled for every round."""

    members: frozenset[ClientId]
    run: bytes
    least: int = 1

    def window(self, index: int) -> frozenset[ClientId]:
        return self.members

    def times_scheduled(self, client: ClientId, index: int, rounds: int) -> int:
        return rounds if client in self.members else 0


@dataclass(frozen=True, eq=False)
class BalancedSelection(ScheduledSelection):
    """Selection by one public permutation of all N clients: each round takes the next `count` clients, cyclically.

    In any R consecutive rounds every client is scheduled at most ceil(R count / N) times.  The permutation follows from
    the run id, the registry, and the `beacon` value of round 0.  Without a beacon a server can choose a manifest whose
    permutation suits it.  Then T_C must bound the number of colluders in the whole registry.
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
        return self.beacon is not None

    @cached_property
    def permutation(self) -> tuple[ClientId, ...]:
        """Return all clients in the order in which they are scheduled."""
        beacon = b"" if self.beacon is None else self.beacon.value(0)
        seed = kdf.expand(self.run + self.registry.root() + beacon, b"dordis/v1/permutation", prg.STREAM_BYTES)
        return tuple(shuffle(list(self.registry), prg.Stream.from_bytes(seed)))

    def window(self, index: int) -> frozenset[ClientId]:
        if index not in self._last_window:
            check_index(index)
            first, N = index * self.count, len(self.registry)
            self._last_window.clear()
            self._last_window[index] = frozenset(self.permutation[(first + i) % N] for i in range(self.count))
        return self._last_window[index]

    def times_scheduled(self, client: ClientId, index: int, rounds: int) -> int:
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
    """Raise ProtocolError unless this client is in `window`, the clients scheduled for round `index`."""
    if me not in window:
        raise ProtocolError(f"client {me} was invited to round {index}, for which it is not scheduled")


def check_contributor_scheduled(client: ClientId, index: int, window: frozenset[ClientId]) -> None:
    """Raise ProtocolError if a contributing `client` is not in `window`, the clients scheduled for round `index`."""
    if client not in window:
        raise ProtocolError(f"client {client} contributes to round {index}, for which it is not scheduled")


def check_all_scheduled(parameters: CohortParameters, window: frozenset[ClientId]) -> None:
    """Raise ProtocolError unless all clients that the parameters list are scheduled for this round."""
    if not window.issuperset(parameters.clients):
        raise ProtocolError("the round has clients that are not scheduled for it")
