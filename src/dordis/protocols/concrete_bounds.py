"""Bounds on the success of attacks on a run's cryptography: the table "Concrete bounds" of docs/proofs/bounds.md."""

import math
from dataclasses import dataclass

OPERATIONS = 64
"""log2 of q, the number of hashes, cipher calls or group operations that an adversary computes."""


@dataclass(frozen=True)
class RoundSize:
    """The size of a round: clients, degree of the graph (0: complete), chunks, coordinates, noise components."""

    clients: int
    degree: int = 0
    chunks: int = 1
    coordinates: int = 10**6
    components: int = 2
    """Noise components of a client in a chunk: 2 with the scheme `single`, dropout tolerance + 1 with `exact`."""

    @property
    def pairs(self) -> float:
        """Return the number of pairs of clients that are neighbours in the graph."""
        return self.clients * (self.degree or self.clients - 1) / 2

    @property
    def keystreams(self) -> float:
        """Return the number of keystreams: in each chunk one per pair, one per self-mask, three per noise component."""
        return self.chunks * (self.pairs + self.clients * (1 + 3 * self.components))

    @property
    def blocks(self) -> float:
        """Return the number of 16-byte blocks in a keystream, which has four bytes for each coordinate of a chunk."""
        return max(1.0, 4 * self.coordinates / self.chunks / 16)


def concrete_bounds(size: RoundSize, operations: int = OPERATIONS) -> dict[str, float]:
    """Return, for each attack in the table, log2 of the bound on the probability that it succeeds in one round."""
    q, n, m, pairs = operations, size.clients, size.chunks, max(1.0, size.pairs)
    keys = math.log2(size.keystreams)
    return {
        "a 128-bit key of a keystream is guessed": q + keys - 128,
        "keystreams differ from uniform ones": keys + 2 * math.log2(size.blocks) - 129,
        "a Diffie-Hellman secret is found, of channels or masks": math.log2((1 + m) * pairs) + 2 * q - 252,
        "a signature is forged": math.log2(n) + 2 * q - 252,
        "a ciphertext of shares is forged": math.log2(20 * m * pairs) - 128,
        "two different sets of parameters have the same hash": 2 * q - 256,
        "a committed secret or a token is guessed": math.log2(4 * n * m) + q - 256,
        "a hashed share is guessed": math.log2(3 * (2 * pairs + n) * m) + q - 256,
        "another share is found with the hash of an honest dealer's share (matters for blame only)": q - 128,
        "a client proves two different outputs for one VRF key and input": q - 128,
    }


def security_bits(size: RoundSize, rounds: int, operations: int = OPERATIONS) -> float:
    """Return the bits of security b of a run: attacks on its cryptography succeed with probability at most 2^-b.

    >>> int(security_bits(RoundSize(100), rounds=1))
    51
    """
    return -math.log2(rounds * sum(2.0**bound for bound in concrete_bounds(size, operations).values()))
