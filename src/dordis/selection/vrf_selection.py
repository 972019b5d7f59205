"""VRF selection: each client evaluates its own verifiable random function, so that nobody can choose the clients.

In each of R rounds, each of N clients is selected with probability n / N.  A client takes part in no more rounds than
its participation cap allows, but the VRF also selects clients that have reached the cap.  If the cap is ceil(R n / N),
which suffices for a balanced schedule, many clients selected in the last rounds may not take part any more.
`describe_starvation` warns if too few of the selected clients would remain.
"""

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from dordis.crypto import vrf
from dordis.errors import InputError, InvalidProof, MalformedMessage, ParametersRefused, ProtocolError
from dordis.identity.registry import Registry
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.parameters import INDEX_BYTES, Parameters
from dordis.rounds.invitation import Invite
from dordis.selection.beacon import Beacon, check_beacon, check_index, check_run_id
from dordis.selection.selection import (
    NO_PROOFS,
    Proofs,
    SelectedClients,
    check_cohort,
    check_least_arrivals,
    check_member,
    check_run,
    select_at_least,
)

OUTPUT_BYTES = 16
"""Number of leading bytes of a VRF output that are compared, as a big-endian integer, with the threshold."""
STARVED = 0.01
"""The largest tolerable chance that all tries of the last round fail because too many clients have reached their
participation cap; above it `describe_starvation` warns."""


@dataclass(frozen=True, eq=False)
class VrfSelection:
    """Selects every client whose VRF output for the round is below a threshold.

    The `threshold` is set so that on average `expected` clients are selected.  The selection of one client does not
    depend on the outputs of other clients.  If instead a fixed number of clients with the smallest outputs were
    selected, the server could conceal one of these clients, and so bring in another client.

    `indices` is the number of round indices, counted from 0, that the run plans for; None means no limit.  A client
    sends no proof for a later index, because the chance of too many colluders is bounded for the planned indices only.
    """

    registry: Registry
    run: bytes
    expected: Fraction
    least: int
    beacon: Beacon
    indices: int | None = None
    is_drawn = True

    def __post_init__(self) -> None:
        check_run_id(self.run)
        if not 0 < self.expected <= len(self.registry):
            raise InputError(f"the expected cohort must be above 0 and at most {len(self.registry)}")
        if self.least < 1:
            raise InputError("the least cohort is at least 1")

    @cached_property
    def threshold(self) -> int:
        """Return floor(2^128 expected / clients): a client is selected if its VRF output is below this number."""
        return int(Fraction(self.expected) * 2 ** (8 * OUTPUT_BYTES) / len(self.registry))

    def alpha(self, index: int) -> bytes:
        """Return the input of every client's VRF in a round: a hash of run, registry, round index and beacon value."""
        check_index(index)
        number = index.to_bytes(INDEX_BYTES, "big")
        parts = (b"dordis/v1/selection", self.run, self.registry.root(), number, self.beacon.value(index))
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()

    def candidates(self, index: int, available: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return all available clients: each evaluates its own VRF."""
        return tuple(sorted(available))

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Return the proof of selection, or None if this client was not selected."""
        check_run(invite, self.run)
        check_index_planned(invite.info.index, self.indices)
        return self.draw(vrf_key, invite.info.index)

    def draw(self, vrf_key: bytes, index: int) -> bytes | None:
        """Evaluate the VRF for a round; return the proof if the output is below the threshold, else None."""
        proof = vrf.prove(vrf_key, self.alpha(index))
        return proof if vrf_number(proof) < self.threshold else None

    def select(self, index: int, available: Collection[ClientId], proofs: Proofs = NO_PROOFS) -> SelectedClients:
        """Select the available clients with a valid proof; a client with an invalid proof is not selected."""
        alpha = self.alpha(index)
        claimed = {u: proofs[u] for u in sorted(set(available) & proofs.keys() & self.registry.keys())}
        valid = {u: proof for u, proof in claimed.items() if self._is_valid(u, alpha, proof)}
        return select_at_least(self.least, valid, valid)

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Raise if a client in U has no valid proof, or if U lacks this client or is smaller than the least cohort.

        Raise also for a beacon value that is not this round's, for a client that is not registered, and for a round of
        another run.  In an assisted round, which has no list U, only the run is checked, and that the sum cannot be
        over fewer clients than the least cohort.
        """
        check_run(parameters, self.run)
        if not isinstance(parameters, CohortParameters):
            check_least_arrivals(parameters, self.least)
            return
        check_member(parameters, me)
        check_cohort(parameters, self.least)
        check_beacon(parameters, self.beacon)
        check_registered(parameters, self.registry)
        check_proofs_complete(parameters, proofs)
        shown = b"".join(proofs[u] for u in parameters.clients)
        parameters.once(("lots", id(self), shown), lambda: self._check_proofs(parameters, proofs))

    def verify_client(self, index: int, client: ClientId, proof: bytes) -> None:
        """Raise unless the proof shows that a registered client was selected for the round."""
        self._check_client(client, self.alpha(index), proof)

    def _check_proofs(self, parameters: CohortParameters, proofs: Proofs) -> None:
        alpha = self.alpha(parameters.index)
        for u in parameters.clients:
            self._check_client(u, alpha, proofs[u])

    def _check_client(self, client: ClientId, alpha: bytes, proof: bytes) -> None:
        check_proof(self.registry[client].vrf, alpha, proof)
        check_threshold(proof, self.threshold)

    def _is_valid(self, client: ClientId, alpha: bytes, proof: bytes) -> bool:
        try:
            self._check_client(client, alpha, proof)
        except (InvalidProof, ProtocolError):
            return False
        return True


def vrf_number(proof: bytes) -> int:
    """Return the VRF output of a verified proof as an integer below 2^128."""
    return int.from_bytes(vrf.proof_to_hash(proof)[:OUTPUT_BYTES], "big")


def check_index_planned(index: int, indices: int | None) -> None:
    """Raise ProtocolError for a round index that the run does not plan for: it would give the server one more draw."""
    if indices is not None and index >= indices:
        raise ProtocolError(f"index {index} is beyond the {indices} that the run plans for its rounds and tries")


def check_registered(parameters: CohortParameters, registry: Registry) -> None:
    """Raise ParametersRefused unless all clients of the round are registered."""
    if not registry.keys() >= parameters.rank.keys():
        raise ParametersRefused("the round has clients that are not in the registry")


def check_proofs_complete(parameters: CohortParameters, proofs: Proofs) -> None:
    """Raise MalformedMessage unless there is a proof for every client of the round, and for no other client."""
    if proofs.keys() != parameters.rank.keys():
        raise MalformedMessage("the proofs of selection are not from the round's clients")


def check_proof(public: bytes, alpha: bytes, proof: bytes) -> None:
    """Raise unless the proof is valid under the registered key `public` for `alpha`, the VRF input of the round."""
    vrf.verify(public, alpha, proof)


def check_threshold(proof: bytes, threshold: int) -> None:
    """Raise ProtocolError unless the proven VRF output is below the threshold."""
    if vrf_number(proof) >= threshold:
        raise ProtocolError("the round has a client whose VRF output is not below the threshold")


def chance_below(trials: int, p: float, least: int) -> float:
    """Return the chance of fewer than `least` successes in `trials` independent draws with success probability p.

    >>> round(chance_below(4, 0.5, 2), 9)
    0.3125
    """
    if p >= 1:
        return float(least > trials)
    logs = (math.log(p / (1 - p)) * k + math.log(1 - p) * trials if p > 0 else -math.inf for k in range(1, least))
    counts = (math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(1, least))
    terms = (math.exp(ways + log) for ways, log in zip(counts, logs, strict=True))
    return min(1.0, (1 - p) ** trials * (least > 0) + math.fsum(terms))


def expected_cohort(clients: int, per_round: int, cap: int, number: int) -> float:
    """Return the mean number of clients drawn for a round that are still below their participation cap.

    `number` is the number of the round, counted from 1.

    >>> expected_cohort(60, 30, 1, 1), expected_cohort(60, 30, 1, 2)
    (30.0, 15.0)
    """
    return per_round * chance_below(number - 1, per_round / clients, cap)


def is_starved(clients: int, per_round: int, rounds: int, cap: int, least: int, tries: int) -> bool:
    """Tell whether the last round is starved: all its tries fail with a chance above `STARVED`.

    Of `clients` registered clients a try draws `per_round` in the mean.  It fails if fewer than `least` of the drawn
    clients are still below their participation cap, `cap`.  The run has `rounds` rounds, with up to `tries` tries each.
    """
    eligible = expected_cohort(clients, per_round, cap, rounds) / clients
    return float(chance_below(clients, eligible, least) ** tries) > STARVED


def working_cap(clients: int, per_round: int, rounds: int, cap: int, least: int, tries: int) -> int | None:
    """Return the least cap, from `cap` to `rounds`, with which the last round is not starved; None if there is none.

    The parameters are those of `is_starved`.
    """
    caps = range(cap, rounds + 1)
    return next((c for c in caps if not is_starved(clients, per_round, rounds, c, least, tries)), None)


def working_cohort(clients: int, per_round: int, rounds: int, least: int, tries: int) -> int | None:
    """Return the cohort size nearest to `per_round` with which the last round has enough clients (not `is_starved`).

    For each cohort size n the participation cap is that of a balanced schedule, rounds n / clients rounded up.  `least`
    is the least cohort for `per_round` clients, and is scaled in proportion to n.  `tries` is the number of tries of
    the last round.  Return None if no cohort size works.
    """
    for n in sorted(range(1, clients + 1), key=lambda n: (abs(n - per_round), n)):
        cap, fewest = -(-rounds * n // clients), max(1, -(-least * n // per_round))
        if n >= 2 and not is_starved(clients, n, rounds, cap, fewest, tries):
            return n
    return None


def describe_starvation(clients: int, per_round: int, rounds: int, cap: int, least: int, tries: int) -> str:
    """Return a warning, with settings that work, if the last round is starved; otherwise empty text.

    A round is starved if too few of its drawn clients are still below their participation cap (`is_starved`).
    """
    if not is_starved(clients, per_round, rounds, cap, least, tries):
        return ""
    left = expected_cohort(clients, per_round, cap, rounds)
    better = working_cap(clients, per_round, rounds, cap, least, tries)
    cohort = working_cohort(clients, per_round, rounds, least, tries)
    ways = [
        *([f"federation.participations = {better} (a cap that works, with more noise)"] if better else []),
        *([f"federation.per_round = {cohort}"] if cohort else []),
        "federation.selection = 'balanced'",
    ]
    return (
        f"VRF selection draws clients that have no participation left: of {per_round} drawn in round {rounds} about "
        f"{left:.0f} may still take part (at most {cap} times each), and {least} are needed: set {', or '.join(ways)}"
    )
