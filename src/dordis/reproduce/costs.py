"""What the steps of a round cost, as laws: seconds and bytes, linear in counts such as coordinates times clients.

The laws are measured (`measured`) or written down from the paper (`paper_mix`); either way they become the modelled
steps that `clock.simulate` runs under the executor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from dordis.privacy.xnoise import NoisePlan
from dordis.protocol import Resource
from dordis.simulation.clock import Cost

ENCODE, ASSEMBLE = "encode", "assemble"
"""What a client does once with the whole vector, before the set-up, and what both sides do after the last chunk."""
SETUP_STEPS = ("advertise_keys", "share_keys", "deliver_shares")
CHUNK_STEPS: Mapping[str, Resource] = {
    "prepare_inputs": Resource.CLIENT,
    "collect_inputs": Resource.NETWORK,
    "agree": Resource.SERVER,
    "unmask": Resource.SERVER,
    "remove_noise": Resource.SERVER,
    "decode": Resource.SERVER,
    "dispatch": Resource.NETWORK,
    "store": Resource.CLIENT,
}
"""The steps of `protocols.round`, as its servers name them."""
NEAR = 1 << 20
"""Coordinates of a chunk up to which memory is fast; beyond, vectors leave the caches and are allocated anew."""
BITS = 20
"""Of a coordinate, b, in what is measured: the paper's."""
VARIANCE = Fraction(2**26)
"""sigma*^2 of what is measured or modelled: far from wrapping around, with components of 1e5 to 1e7 in `single`."""
CLIENT, SERVER, REQUEST, REPLY = "client", "server", "request", "reply"
"""What is counted of a step: seconds of each client and of the server, bytes to and from each client."""


@dataclass(frozen=True)
class Shape:
    """A round as far as its cost goes: who takes part, the coordinates of a chunk, the components of the noise."""

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
    def of(cls, noise: NoisePlan, peers: int, dropped: int, chunks: int, dim: int) -> "Shape":
        """Count the components of a noise plan."""
        n = noise.clients
        due = sum(map(len, noise.due(range(n - dropped), b"").values()))
        return cls(n, peers, dropped, chunks, dim, len(noise.base), len(noise.removable), due)

    @property
    def survivors(self) -> int:
        """Return |U3|."""
        return self.clients - self.dropped

    def counts(self) -> dict[str, float]:
        """Return what the laws are linear in."""
        n, s, k, m, d = self.clients, self.survivors, self.peers, self.chunks, self.dim
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
        }


def whole_vector(dim: float) -> dict[str, float]:
    """Return the counts of what is done once with the whole vector."""
    return {"one": 1.0, "dim": dim, "far": max(0.0, dim - NEAR)}


Law = dict[str, float]
"""What one thing costs: a coefficient for each count."""


class Costs(msgspec.Struct, frozen=True):
    """The laws of every step, by what is counted; where there is no law, nothing is charged."""

    name: str
    laws: dict[str, dict[str, Law]]
    padded: bool = False
    """Whether each chunk is padded to a power of two, as in the paper's code; ours is padded once, by blocks."""
    whole: bool = False
    """Whether the vector is padded to a power of two as a whole, so that chunks waste neither more nor less."""
    tolerated: float = 0.0
    """T as a share of n, where it is not this library's default."""
    degrees: dict[int, int] = msgspec.field(default_factory=dict)
    """Neighbours in SecAgg+ by n, where they are not this library's."""

    def chunk_dim(self, dim: int, m: int) -> int:
        """Return the coordinates of one of m chunks.

        >>> Costs("", {}, padded=True).chunk_dim(11_183_562, 4)
        4194304
        """
        each = -(-(_power_of_two(dim) if self.whole else dim) // m)
        return _power_of_two(each) if self.padded else each

    def of(self, step: str, which: str, counts: Mapping[str, float]) -> float:
        """Return the seconds or the bytes of a step."""
        law = self.laws.get(step, {}).get(which, {})
        return sum(coefficient * counts[count] for count, coefficient in law.items())

    def step(self, name: str, resource: Resource, counts: Mapping[str, float]) -> Cost:
        """Return a modelled step."""
        return Cost(
            name,
            resource,
            request=round(self.of(name, REQUEST, counts)),
            client=self.of(name, CLIENT, counts),
            reply=round(self.of(name, REPLY, counts)),
            server=self.of(name, SERVER, counts),
        )

    def steps(self, shape: Shape) -> tuple[list[Cost], list[list[Cost]]]:
        """Return the set-up and the chunks of a round, for `simulate`."""
        counts = shape.counts()
        whole = whole_vector(shape.chunks * shape.dim)
        setup = [
            self.step(ENCODE, Resource.CLIENT, whole),
            *(self.step(name, Resource.CLIENT, counts) for name in SETUP_STEPS),
        ]
        chunk = [self.step(name, resource, counts) for name, resource in CHUNK_STEPS.items()]
        chunks = [list(chunk) for _ in range(shape.chunks)]
        last, end = chunks[-1][-1], self.step(ASSEMBLE, Resource.CLIENT, whole)
        chunks[-1][-1] = msgspec.structs.replace(last, client=last.client + end.client, server=last.server + end.server)
        return setup, chunks


def _power_of_two(dim: int) -> int:
    return 1 << math.ceil(math.log2(dim))
