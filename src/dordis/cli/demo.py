"""A private mean over simulated clients: one round of SecAgg with XNoise, in one process, some clients vanishing."""

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from dordis import drive
from dordis.errors import InputError
from dordis.kernels.packing import unpack
from dordis.kernels.ring import Vector
from dordis.kernels.rounding import round_stochastically
from dordis.privacy.xnoise import Scheme
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.parameters import Parameters, agree_on
from dordis.protocols.secagg import ChunkOutput, SecAggClient, SecAggServer
from dordis.protocols.secagg.masking import Entropy
from dordis.protocols.secagg.messages import REPLIES, CollectInput, MaskedInput, RemoveNoise, Unmask
from dordis.simulation.exchange import LocalExchange

Floats = npt.NDArray[np.float64]
DIM, BITS, SCALE = 1000, 20, 2**10
CENTRAL_VARIANCE = SCALE**2  # noise on the sum with the standard deviation of one unit of a client's values
MOST_CLIENTS = 200  # so many values of 1 and their noise stay below half the ring
STAGES = {CollectInput: "upload", Unmask: "unmasking", RemoveNoise: "noise removal"}


@dataclass(frozen=True)
class Outcome:
    """Hold what the demo shows: `vanished` tells at which stage; the true mean is known to the simulation only."""

    clients: int
    vanished: Mapping[ClientId, int]
    seen: Mapping[ClientId, Vector]
    output: ChunkOutput
    true_mean: Floats
    mean: Floats
    expected_error: float
    traffic: float


def simulate(clients: int, dropped: int, entropy: Entropy = secrets.token_bytes) -> Outcome:
    """Run one round in which `dropped` clients, chosen at random, vanish at a random stage after sharing their keys."""
    parameters = settle(clients, dropped, entropy)
    values = {u: draw(entropy) for u in parameters.clients}
    parties = {u: SecAggClient(u, encode(x, entropy), entropy=entropy) for u, x in values.items()}
    leaving = sorted(parameters.clients, key=lambda _: entropy(16))[:dropped]
    vanished = {u: int.from_bytes(entropy(8)) % len(STAGES) for u in sorted(leaving)}
    missed = {u: list(STAGES)[place:] for u, place in vanished.items()}
    exchange = LocalExchange(parties, REPLIES, lambda u, request: type(request) in missed.get(u, ()))
    seen: dict[ClientId, Vector] = {}
    (output,) = drive.run(SecAggServer(parameters), tapped(exchange, seen))
    unit = SCALE * len(output.survivors)
    true_mean = np.mean([values[u] for u in output.survivors], axis=0)
    mean, error = signed(output.total) / unit, sqrt(output.left) / unit
    traffic = exchange.sent.total() + exchange.received.total()
    return Outcome(clients, vanished, seen, output, true_mean, mean, error, traffic / clients)


def settle(clients: int, dropped: int, entropy: Entropy) -> Parameters:
    """Fix the parameters, with a majority as the threshold, or refuse the wish."""
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(f"the demo takes 3 to {MOST_CLIENTS} clients, not {clients}")
    parameters = agree_on(
        run=entropy(32),
        index=0,
        clients=range(1, clients + 1),
        threshold=clients // 2 + 1,
        bits=BITS,
        ends=[DIM],
        scheme=Scheme.SINGLE,
        variances=[CENTRAL_VARIANCE],
    )
    if not 0 <= dropped <= parameters.tolerance:
        raise InputError(f"of {clients} clients 0 to {parameters.tolerance} may drop out, not {dropped}")
    return parameters


def draw(entropy: Entropy) -> Floats:
    """Draw a client's values: half a cosine wave and a spread of 1."""
    spread: Floats = np.frombuffer(entropy(4 * DIM), np.uint32) / 2**32 - 0.5
    return spread + np.cos(np.linspace(0, np.pi, DIM)) / 2


def encode(values: Floats, entropy: Entropy) -> Vector:
    """Clip values to [-1, 1], scale them, round them at random, and read them modulo 2^b."""
    rounded = np.empty(DIM, np.int32)
    round_stochastically(np.clip(values, -1, 1), SCALE, np.frombuffer(entropy(4 * DIM), np.uint32), rounded)
    return rounded.view(np.uint32) & np.uint32(2**BITS - 1)


def signed(vector: Vector) -> npt.NDArray[np.int32]:
    """Read a vector over Z_{2^b} as integers around 0."""
    return (vector << np.uint32(32 - BITS)).view(np.int32) >> np.int32(32 - BITS)


def tapped(exchange: drive.Exchange, seen: dict[ClientId, Vector]) -> drive.Exchange:
    """Keep the uploads that pass through an exchange: what a curious server looks at."""

    def deliver(requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for u, reply in exchange(requests):
            if isinstance(reply, MaskedInput):
                seen[u] = unpack(reply.vector, BITS, DIM)
            yield u, reply

    return deliver


def demo(clients: int, dropped: int, shown: int = 4) -> None:
    """Run the simulation and print what each party knows of the first few coordinates, and what it cost."""
    started = time.perf_counter()
    outcome = simulate(clients, dropped)
    seconds = time.perf_counter() - started
    console = Console(soft_wrap=True)
    console.print(vectors(outcome, shown))
    console.print(facts(outcome, seconds))
    console.print("No epsilon is claimed: the accounting that turns noise into a privacy guarantee does not exist yet.")


def vectors(outcome: Outcome, shown: int) -> Table:
    """Show the first coordinates as the simulation, the server and everyone know them."""
    watched = outcome.output.survivors[0]
    rows = {"true mean of the survivors": outcome.true_mean, "private mean": outcome.mean}
    rows[f"the server saw of client {watched}"] = signed(outcome.seen[watched]) / SCALE
    table = Table("coordinate", *map(str, range(shown)), title=f"Mean over {outcome.clients} clients")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in row[:shown]))
    return table


def facts(outcome: Outcome, seconds: float) -> Table:
    """Show the error, the noise, who dropped where, and the cost."""
    error = np.sqrt(np.mean((outcome.mean - outcome.true_mean) ** 2))
    table = Table("what", "value", show_header=False)
    table.add_row("error, root mean square", f"{error:.4f}, expected {outcome.expected_error:.4f}")
    left, charged = float(outcome.output.left), float(outcome.output.charged)
    table.add_row("noise variance left / charged", f"{left:.1f} / {charged:.1f}")
    for place, stage in enumerate(STAGES.values()):
        gone = [str(u) for u, since in outcome.vanished.items() if since == place]
        table.add_row(f"vanished at {stage}", ", ".join(gone) or "nobody")
    table.add_row("bytes per client, both ways", f"{outcome.traffic:,.0f}")
    table.add_row("seconds", f"{seconds:.2f}")
    return table
