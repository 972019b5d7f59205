"""Cost laws of the steps of a round: seconds and bytes, linear in counts such as coordinates times clients.

The laws are measured (`costs_measured`) or taken from the paper (`costs_paper`); `costs_simulated.simulate` runs steps
of these costs under the executor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from dordis.privacy.xnoise_components import NoisePlan
from dordis.protocol import Resource
from reproduce.costs_simulated import StepCost

ENCODE, ASSEMBLE = "encode", "assemble"
"""Steps on the whole vector: a client's encoding before the set-up, and both sides' assembly after the last chunk."""
SETUP_STEPS = ("advertise_keys", "share_keys", "deliver_shares")
CHUNK_STEPS: Mapping[str, Resource] = {
    "prepare_inputs": Resource.CLIENT,
    "collect_inputs": Resource.NETWORK,
    "agree": Resource.SERVER,
    "unmask": Resource.SERVER,
    "remove_noise": Resource.SERVER,
    "decode": Resource.SERVER,
    "dispatch": Resource.DOWNLINK,
    "store": Resource.CLIENT,
}
"""The steps of a chunk by their names in `rounds.engine`, except RELEASE."""
RELEASE = "release_secrets"
"""The step whose cost is counted with the next step, the removal of noise."""
NEAR = 1 << 20
"""Coordinates up to which a vector stays in the caches; longer ones cost more for each coordinate."""
BITS = 20
"""Bits of a coordinate, b: the paper's."""
VARIANCE = Fraction(2**26)
"""sigma*^2 of measured and simulated rounds: sums do not wrap around, and components of `single` have 1e5 to 1e7."""
CLIENT, SERVER, REQUEST, REPLY = "client", "server", "request", "reply"
"""The costs of a step: seconds of each client and of the server, bytes to and from each client."""


@dataclass(frozen=True)
class Shape:
    """The sizes on which the costs of a round depend: clients, coordinates of a chunk, noise components of a client."""

    clients: int
    peers: int
    """Neighbours of a client: n - 1 on the complete graph."""
    dropped: int
    """Clients lost before they upload."""
    chunks: int
    dim: int
    """Coordinates of one chunk."""
    base: int = 0
    removable: int = 0
    due: int = 0
    """Components that are removed, over all survivors."""

    @classmethod
    def from_noise(cls, noise: NoisePlan, peers: int, dropped: int, chunks: int, dim: int) -> "Shape":
        """Return the shape of a round with this noise plan."""
        n = noise.clients
        due = sum(map(len, noise.due_components(range(n - dropped), b"").values()))
        return cls(n, peers, dropped, chunks, dim, len(noise.base), len(noise.removable), due)

    def counts(self) -> dict[str, float]:
        """Return the counts in which the laws are linear."""
        n, s, k, m, d = self.clients, self.clients - self.dropped, self.peers, self.chunks, self.dim
        lost = self.dropped * k * s / max(1, n - 1)
        holders = (k + 1) * s / n
        shares = m * (2 + self.removable) * (k + 1)
        return {
            "one": 1,
            "chunks": m,
            "clients": n,
            "clients*chunks": n * m,
            "peers": k,
            "shares": shares,  # of all secrets of a client, one for each neighbour and for itself
            "shares*peers": shares * (k + 1),
            "clients*peers": n * k,
            "clients*shares": n * shares,
            "survivors": s,
            "lost pairs": lost,
            "rebuilt": n * holders,
            "interpolated": holders**2 * (1 if k == n - 1 else n),
            "due": self.due,
            "dim": d,
            "masks*dim": (k + 1) * d,
            "noise*dim": (self.base + self.removable) * d,
            "uploads*dim": s * d,
            "lifted*dim": (s + lost) * d,  # masks that the server removes
            "due*dim": self.due * d,
            "far": max(0, d - NEAR),
            "uploads*far": s * max(0, d - NEAR),
            "vector": m * d,
            "vector far": max(0, m * d - NEAR),
        }


Law = dict[str, float]
"""One cost of a step: a coefficient for each count."""


class Costs(msgspec.Struct, frozen=True):
    """The laws of every step and kind of cost; a cost without a law is 0."""

    name: str
    laws: dict[str, dict[str, Law]]
    padded: bool = False
    """Whether each chunk is padded to a power of two, as in the paper's code; ours is padded once, by blocks."""
    whole: bool = False
    """Whether the whole vector is padded to a power of two, whatever the number of chunks."""
    tolerated: float = 0.0
    """T as a share of n; 0: this library's default."""
    degrees: dict[int, int] = msgspec.field(default_factory=dict)
    """Neighbours in SecAgg+ by n, where they are not this library's."""
    one_way: bool = False
    """Whether sums are dispatched only after the last upload, as in the paper, whose links are one resource."""

    @property
    def chunk_steps(self) -> Mapping[str, Resource]:
        """Return the steps of a chunk, each with the resource that it keeps busy."""
        if not self.one_way:
            return CHUNK_STEPS
        return {
            name: Resource.NETWORK if resource is Resource.DOWNLINK else resource
            for name, resource in CHUNK_STEPS.items()
        }

    def chunk_dim(self, dim: int, m: int) -> int:
        """Return the coordinates of one of m chunks.

        >>> Costs("", {}, padded=True).chunk_dim(11_183_562, 4)
        4194304
        """
        size = -(-(_power_of_two(dim) if self.whole else dim) // m)
        return _power_of_two(size) if self.padded else size

    def step(self, name: str, resource: Resource, counts: Mapping[str, float]) -> StepCost:
        """Return the cost of a step: its laws, evaluated at the counts."""
        laws = self.laws.get(name, {})
        amount = {
            which: sum(coefficient * counts[count] for count, coefficient in laws.get(which, {}).items())
            for which in (REQUEST, CLIENT, REPLY, SERVER)
        }
        return StepCost(name, resource, round(amount[REQUEST]), amount[CLIENT], round(amount[REPLY]), amount[SERVER])

    def steps(self, shape: Shape) -> tuple[list[StepCost], list[list[StepCost]]]:
        """Return the costs of set-up and chunks for `simulate`; the last chunk includes the assembly of the vector."""
        counts = shape.counts()
        setup = [self.step(name, Resource.CLIENT, counts) for name in (ENCODE, *SETUP_STEPS)]
        chunk = [self.step(name, resource, counts) for name, resource in self.chunk_steps.items()]
        last, end = chunk[-1], self.step(ASSEMBLE, Resource.CLIENT, counts)
        ended = msgspec.structs.replace(last, client=last.client + end.client, server=last.server + end.server)
        return setup, [chunk] * (shape.chunks - 1) + [[*chunk[:-1], ended]]


def _power_of_two(dim: int) -> int:
    return 1 << math.ceil(math.log2(dim))
