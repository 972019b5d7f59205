"""A private mean over simulated clients: masks, recovery of the dropped and removal of excess noise, in one process."""

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from dordis.crypto import agreement, kdf, prg, sharing
from dordis.errors import CryptoError, InputError
from dordis.kernels.ring import Vector
from dordis.kernels.rounding import round_stochastically
from dordis.privacy.noise import add_noise, rounded_up

Floats = npt.NDArray[np.float64]
Entropy = Callable[[int], bytes]

DIM, BITS, SCALE = 1000, 24, 2**10
CENTRAL_VARIANCE = SCALE**2
"""The noise left on the sum has the standard deviation of one unit of a client's values."""
MOST_CLIENTS = 1000
ROUND = b"demo"


@dataclass(frozen=True)
class Setting:
    """Hold what everyone knows: n, the Shamir threshold t, the dropout tolerance T of the noise.

    Of a client's two noise components of equal variance one is removable: with D dropped, 2 (T - D) of them go.
    """

    n: int

    @property
    def threshold(self) -> int:
        return self.n // 2 + 1

    @property
    def tolerance(self) -> int:
        return 4 * (self.n - self.threshold) // 5

    @property
    def component(self) -> Fraction:
        return rounded_up(Fraction(CENTRAL_VARIANCE, 2 * (self.n - self.tolerance)))

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"demo/{self.n}/{DIM}/{BITS}/{self.component}".encode()).digest()


@dataclass(frozen=True, repr=False)
class Client:
    """Hold the secrets of one client; its id is also its Shamir point."""

    id: int
    values: Floats
    private: bytes
    base: bytes
    removable: bytes

    @classmethod
    def draw(cls, id: int, entropy: Entropy) -> "Client":
        """Draw values in [-1, 1] around half a cosine wave, and fresh secrets."""
        spread = np.frombuffer(entropy(4 * DIM), np.uint32) / 2**32 - 0.5
        return cls(id, np.cos(np.linspace(0, np.pi, DIM)) / 2 + spread, *(entropy(32) for _ in range(3)))


@dataclass(frozen=True)
class Outcome:
    """Hold what the table shows; the true mean is known to the simulation only."""

    survivors: tuple[int, ...]
    seen: Vector
    true_mean: Floats
    mean: Floats
    expected_error: float


def simulate(clients: int, dropped: int, entropy: Entropy = secrets.token_bytes) -> Outcome:
    """Run one round in which `dropped` clients, chosen at random, share their keys and then never upload."""
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(f"the demo takes 3 to {MOST_CLIENTS} clients, not {clients}")
    setting = Setting(clients)
    if not 0 <= dropped <= setting.tolerance:
        raise InputError(f"of {clients} clients 0 to {setting.tolerance} may drop out, not {dropped}")
    everyone = [Client.draw(u, entropy) for u in range(1, clients + 1)]
    publics = {client.id: agreement.public(client.private) for client in everyone}
    shares = [sharing.split([client.private], list(publics), setting.threshold, entropy)[:, 0] for client in everyone]
    left = sorted(sorted(everyone, key=lambda _: entropy(16))[dropped:], key=lambda client: client.id)
    uploads = [upload(setting, client, publics, entropy) for client in left]
    total: Vector = np.add.reduce(uploads, dtype=np.uint32)
    alive = [client.id for client in left]
    unmask(setting, total, publics, alive, np.stack(shares, axis=1))
    for client in left[: 2 * (setting.tolerance - dropped)]:
        add_noise(total, client.removable, setting.component, subtract=True)
    unit = SCALE * len(left)
    deviation = float(2 * (setting.n - setting.tolerance) * setting.component) ** 0.5 / unit
    true_mean = np.mean([client.values for client in left], axis=0)
    return Outcome(tuple(alive), uploads[0], true_mean, signed(total) / unit, deviation)


def upload(setting: Setting, client: Client, publics: Mapping[int, bytes], entropy: Entropy) -> Vector:
    """Round a client's values, add its noise, hide the result under a mask for every peer."""
    rounded = np.empty(DIM, np.int32)
    round_stochastically(client.values, SCALE, np.frombuffer(entropy(4 * DIM), np.uint32), rounded)
    vector = rounded.view(np.uint32)
    for seed in (client.base, client.removable):
        add_noise(vector, seed, setting.component)
    add_pairwise_masks(setting, vector, client.id, client.private, publics)
    return vector


def unmask(
    setting: Setting, total: Vector, publics: Mapping[int, bytes], alive: Collection[int], shares: sharing.Shares
) -> None:
    """Rebuild the keys of the dropped from the survivors' shares; the masks they never sent cancel those left over."""
    dropped = [u for u in publics if u not in alive]
    rows, columns = (np.array(ids, np.intp) - 1 for ids in (alive, dropped))
    privates = sharing.Interpolation(list(alive), setting.threshold).combine(shares[np.ix_(rows, columns)])
    for u, private in zip(dropped, privates, strict=True):
        if agreement.public(private) != publics[u]:
            raise CryptoError(f"the shares of client {u} give another key than it advertised")
        add_pairwise_masks(setting, total, u, private, {v: publics[v] for v in alive})


def add_pairwise_masks(setting: Setting, acc: Vector, u: int, private: bytes, peers: Mapping[int, bytes]) -> None:
    """Add the masks that client u shares with later peers and subtract those it shares with earlier ones."""

    def stream(v: int) -> prg.Stream:
        use = kdf.label("mask", ROUND, 0, min(u, v), max(u, v))
        return prg.Stream.of(kdf.derive(agreement.agree(private, peers[v]), use, setting.digest, prg.STREAM_BYTES))

    prg.add_masks(acc, [stream(v) for v in peers if v > u], [stream(v) for v in peers if v < u], BITS)


def signed(vector: Vector) -> npt.NDArray[np.int32]:
    """Read a vector over Z_{2^b} as integers around 0."""
    return (vector << np.uint32(32 - BITS)).view(np.int32) >> np.int32(32 - BITS)


def demo(clients: int, dropped: int, shown: int = 4) -> None:
    """Run the simulation and print what each party knows of the first few coordinates."""
    started = time.perf_counter()
    outcome = simulate(clients, dropped)
    seconds = time.perf_counter() - started
    first, seen = outcome.survivors[0], signed(outcome.seen) / SCALE
    rows = {"true mean of the survivors": outcome.true_mean, f"the server saw of client {first}": seen}
    table = Table("coordinate", *map(str, range(shown)), title=f"Mean of {clients} clients, {dropped} dropped")
    for name, row in (rows | {"private mean": outcome.mean}).items():
        table.add_row(name, *(f"{value:.3f}" for value in row[:shown]))
    error = float(np.sqrt(np.mean((outcome.mean - outcome.true_mean) ** 2)))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"Error over {DIM} coordinates {error:.4f}, expected {outcome.expected_error:.4f}; {seconds:.2f} s.")
    console.print("Masks, recovery and noise come from the real kernels; the full protocol arrives later.")
