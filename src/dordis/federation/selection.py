"""Who takes part in a round: the server selects, and every client verifies that U could have been selected so.

`Uniform` leaves nothing to verify and is for semi-honest servers.  `Balanced` and `Verifiable` bind a
malicious one: it may leave clients out, down to the least cohort, but never choose whom to bring in.  All of that
rests on the order of events: registry closed, run id fixed, and only then the beacon known.  A server may try
manifests, and with them run ids: over 2^64 tries the chance of more than T_C colluders is at most 2^-40.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from dordis.crypto import kdf, prg, vrf
from dordis.crypto.shuffle import shuffled
from dordis.errors import InputError, InvalidProof, MalformedMessage, ParametersRefused, ProtocolError, TooFewClients
from dordis.federation import beacon as beacons
from dordis.federation.beacon import Beacon, check_index, check_run_id
from dordis.federation.colluders import draw_failure
from dordis.federation.registry import Registry
from dordis.protocol import ClientId
from dordis.protocols.parameters import INDEX_BYTES, MALICIOUS, RUN_BYTES, Parameters
from dordis.rounds.invitation import Invite

LOT_BYTES = 16
"""Bytes of a VRF output that decide, big-endian."""

Proofs = Mapping[ClientId, bytes]
NO_PROOFS: Proofs = MappingProxyType({})


@dataclass(frozen=True)
class Selected:
    """U in ascending order, and what proves it, by client."""

    clients: tuple[ClientId, ...]
    proofs: dict[ClientId, bytes] = field(default_factory=dict)


class Selection(Protocol):
    """A strategy: the server asks for candidates and selects, a client claims its place and verifies all of U."""

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return the clients to invite to a round."""
        ...

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Return what proves that I am selected, which may be nothing, or None if my lot is another one.

        Refuse an invitation that this strategy cannot have produced.
        """
        ...

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> Selected:
        """Select U among the clients at hand; too few raise `TooFewClients`, and the round is skipped."""
        ...

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Refuse a U that this strategy cannot have produced, or that I am not in."""
        ...


@dataclass(frozen=True, repr=False)
class Uniform:
    """`count` of the available clients, or all if there are fewer, each set as likely as any other."""

    count: int
    seed: bytes
    least: int = 1

    def __post_init__(self) -> None:
        _check_sizes(self.count, self.least)

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return those who are drawn."""
        return self.select(index, available).clients

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Claim a place, which nobody has to prove."""
        check_semi_honest(invite.terms.mode)
        return b""

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> Selected:
        """Draw U from the seed and the round's index."""
        check_index(index)
        stream = prg.Stream.of(kdf.expand(self.seed, b"dordis/v1/uniform/%d" % index, prg.STREAM_BYTES))
        drawn = shuffled(sorted(set(available)), stream)[: self.count]
        return _selected(drawn, self.least)

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Refuse to be selected so by a server that may be malicious."""
        check_semi_honest(parameters.mode)
        check_member(parameters, me)


class Turns(ABC):
    """Whoever is due in a round, which everyone knows; U may lack some of them, but not more than leave `least`."""

    run: bytes
    least: int

    @abstractmethod
    def window(self, index: int) -> frozenset[ClientId]:
        """Return the clients due in a round."""

    @abstractmethod
    def turns(self, client: ClientId, index: int, rounds: int) -> int:
        """Return how often a client is due in so many rounds from an index on."""

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return those due who are available."""
        return tuple(sorted(self.window(index).intersection(available)))

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Claim a place that is mine."""
        check_run(invite, self.run)
        check_due(me, self.window(invite.info.index))
        return b""

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> Selected:
        """Take those due who are available."""
        return _selected(self.candidates(index, available), self.least)

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Refuse clients who are not due in this round, and a cohort that is too small."""
        check_run(parameters, self.run)
        check_member(parameters, me)
        check_cohort(parameters, self.least)
        check_window(parameters, self.window(parameters.index))


@dataclass(frozen=True)
class Everyone(Turns):
    """All of a fixed set of clients are due in every round."""

    members: frozenset[ClientId]
    run: bytes
    least: int = 1

    def window(self, index: int) -> frozenset[ClientId]:
        """Return the set."""
        return self.members

    def turns(self, client: ClientId, index: int, rounds: int) -> int:
        """Return all rounds, for a member."""
        return rounds if client in self.members else 0


@dataclass(frozen=True, eq=False)
class Balanced(Turns):
    """One fixed public permutation of all N clients: in each round the next `count` of it are due, cyclically.

    In any R consecutive rounds every client is due at most ceil(R count / N) times.  `run` is the run id; the
    permutation is fixed by it, by the registry, and by the value of round 0 of the `beacon`.  Without a beacon the
    server can choose a manifest, and so a permutation, that it likes: then T_C has to bound the colluders of the whole
    registry.
    """

    registry: Registry
    run: bytes
    count: int
    least: int
    beacon: Beacon | None = None

    def __post_init__(self) -> None:
        check_run_id(self.run)
        _check_sizes(self.count, self.least)
        if self.count > len(self.registry):
            raise InputError(f"{self.count} clients a round are more than the {len(self.registry)} registered")

    @cached_property
    def permutation(self) -> tuple[ClientId, ...]:
        """Return all clients in the order in which they are due."""
        line = b"" if self.beacon is None else self.beacon.value(0)
        derived = kdf.expand(self.run + self.registry.root() + line, b"dordis/v1/permutation", prg.STREAM_BYTES)
        return tuple(shuffled(list(self.registry), prg.Stream.of(derived)))

    def window(self, index: int) -> frozenset[ClientId]:
        """Return the clients due in a round."""
        if index not in self._windows:
            check_index(index)
            first, N = index * self.count, len(self.registry)
            self._windows.clear()
            self._windows[index] = frozenset(self.permutation[(first + i) % N] for i in range(self.count))
        return self._windows[index]

    def turns(self, client: ClientId, index: int, rounds: int) -> int:
        """Return how often a client is due: its place is passed once in every N places of the endless sequence."""
        if client not in self._places:
            return 0
        first, N, place = index * self.count, len(self.registry), self._places[client]
        return (first + rounds * self.count - 1 - place) // N - (first - 1 - place) // N

    @cached_property
    def _places(self) -> dict[ClientId, int]:
        return {u: place for place, u in enumerate(self.permutation)}

    @cached_property
    def _windows(self) -> dict[int, frozenset[ClientId]]:
        return {}  # the last one: all clients of a round ask for the same


@dataclass(frozen=True, eq=False)
class Verifiable:
    """Whoever draws a lot below the threshold: each client from its own VRF key, so that nobody else can choose.

    The threshold makes the cohort `expected` on average; there is no cut to the smallest lots, which would hide that
    someone was left out.  Of a run of so many `indices` nobody shows a lot under another one: the chance that lots fail
    is provided for these.
    """

    registry: Registry
    run: bytes
    expected: Fraction
    least: int
    beacon: Beacon
    indices: int | None = None

    def __post_init__(self) -> None:
        check_run_id(self.run)
        if not 0 < self.expected <= len(self.registry):
            raise InputError(f"the expected cohort lies in 0..{len(self.registry)}, above 0")
        if self.least < 1:
            raise InputError("the least cohort is at least 1")

    @cached_property
    def threshold(self) -> int:
        """Return what a lot must be below: floor(2^128 expected / N)."""
        return int(Fraction(self.expected) * 2 ** (8 * LOT_BYTES) / len(self.registry))

    def alpha(self, index: int) -> bytes:
        """Return what every client evaluates its VRF on in this round."""
        check_index(index)
        number = index.to_bytes(INDEX_BYTES, "big")
        parts = (b"dordis/v1/selection", self.run, self.registry.root(), number, self.beacon.value(index))
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return everybody: each draws its own lot."""
        return tuple(sorted(available))

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Draw my lot; return the proof if it is below the threshold."""
        check_run(invite, self.run)
        check_provided(invite.info.index, self.indices)
        return self.draw(vrf_key, invite.info.index)

    def draw(self, vrf_key: bytes, index: int) -> bytes | None:
        """Return the proof that I am selected, or None if I am not."""
        proof = vrf.prove(vrf_key, self.alpha(index))
        return proof if lot(proof) < self.threshold else None

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> Selected:
        """Take the available clients whose proofs hold; those of others count as not sent."""
        alpha = self.alpha(index)
        claimed = {u: proofs[u] for u in sorted(set(available) & proofs.keys() & self.registry.keys())}
        held = {u: proof for u, proof in claimed.items() if self._holds(u, alpha, proof)}
        return _selected(held, self.least, held)

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Refuse a member without a proof for this very round of a lot below the threshold, and a small cohort."""
        check_run(parameters, self.run)
        check_member(parameters, me)
        check_cohort(parameters, self.least)
        beacons.check_beacon(parameters, self.beacon)
        check_registered(parameters, self.registry)
        check_complete(parameters, proofs)
        shown = b"".join(proofs[u] for u in parameters.clients)
        parameters.once(("lots", id(self), shown), lambda: self._check_lots(parameters, proofs))

    def _check_lots(self, parameters: Parameters, proofs: Proofs) -> None:
        """Raise if a lot is not a valid proof of its client for this round, or is not below the threshold."""
        alpha = self.alpha(parameters.index)
        for u in parameters.clients:
            check_proof(self.registry[u].vrf, alpha, proofs[u])
            check_threshold(proofs[u], self.threshold)

    def _holds(self, client: ClientId, alpha: bytes, proof: bytes) -> bool:
        try:
            check_proof(self.registry[client].vrf, alpha, proof)
            check_threshold(proof, self.threshold)
        except (InvalidProof, ProtocolError):
            return False
        return True


def failure_of(selection: Selection) -> Fraction:
    """Return the chance, at most, that a selection puts more than T_C colluders into a round."""
    drawn = isinstance(selection, Verifiable) or (isinstance(selection, Balanced) and selection.beacon is not None)
    return draw_failure() if drawn else Fraction(0)


def check_semi_honest(mode: str) -> None:
    """The server is trusted to select: here nobody can verify it."""
    if mode == MALICIOUS:
        raise ParametersRefused(
            "against a malicious server selection must be 'balanced' or 'vrf', which can be verified"
        )


def check_run(told: Parameters | Invite, run: bytes) -> None:
    """The run is the one that was fixed: a run id chosen later could be one with a convenient selection."""
    if told.round[:RUN_BYTES] != run:
        raise ProtocolError("this round belongs to another run")


def check_provided(index: int, indices: int | None) -> None:
    """The index is one that the run provides for: lots of others could be looked at before the server chooses."""
    if indices is not None and index >= indices:
        raise ProtocolError(f"the run has no index {index}: its rounds and their tries take {indices} at most")


def check_member(parameters: Parameters, me: ClientId) -> None:
    """I am one of the round's clients."""
    if me not in parameters.rank:
        raise ParametersRefused(f"client {me} is not among the clients of this round")


def check_cohort(parameters: Parameters, least: int) -> None:
    """Not more clients were left out than leave the least cohort."""
    if len(parameters.clients) < least:
        raise ParametersRefused(f"a round of {len(parameters.clients)} clients is below the least cohort of {least}")


def check_due(me: ClientId, window: frozenset[ClientId]) -> None:
    """I am due in this round."""
    if me not in window:
        raise ProtocolError("I am not due in the round that I am invited to")


def check_window(parameters: Parameters, window: frozenset[ClientId]) -> None:
    """Everyone in U is due in this round."""
    if not window.issuperset(parameters.clients):
        raise ProtocolError("the round has clients that are not due in it")


def check_registered(parameters: Parameters, registry: Registry) -> None:
    """Everyone in U is registered."""
    if not registry.keys() >= parameters.rank.keys():
        raise ParametersRefused("the round has clients that are not in the registry")


def check_complete(parameters: Parameters, proofs: Proofs) -> None:
    """There is a proof for every member of U, and for nobody else."""
    if proofs.keys() != parameters.rank.keys():
        raise MalformedMessage("the proofs of selection are not those of the round's clients")


def check_proof(public: bytes, alpha: bytes, proof: bytes) -> None:
    """The proof is by the owner of this registered key, for this round, run, registry and beacon."""
    vrf.verify(public, alpha, proof)


def check_threshold(proof: bytes, threshold: int) -> None:
    """The lot that is proven is below the threshold."""
    if lot(proof) >= threshold:
        raise ProtocolError("the round has a client whose lot is not below the threshold")


def lot(proof: bytes) -> int:
    """Return the lot that a proof, one's own or verified, gives: below 2^128."""
    return int.from_bytes(vrf.output(proof)[:LOT_BYTES], "big")


def _selected(clients: Collection[ClientId], least: int, proofs: Proofs = NO_PROOFS) -> Selected:
    if len(clients) < least:
        raise TooFewClients("the selection", len(clients), least)
    return Selected(tuple(sorted(clients)), dict(proofs))


def _check_sizes(count: int, least: int) -> None:
    if not 1 <= least <= count:
        raise InputError(f"need 1 <= least <= count, not {least} and {count}")
