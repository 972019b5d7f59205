"""A private mean over simulated clients: one round of SecAgg with XNoise, in one process, some clients vanishing.

The server is not trusted: keys are signed, U3 is agreed on, and every client has an owner with a policy.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt

import numpy as np
from rich.table import Table

from dordis.cli import tables
from dordis.drive import Exchange
from dordis.errors import InputError
from dordis.federation.design import Design, ProtocolKind
from dordis.federation.strategies.xnoise import XNoise
from dordis.kernels.packing import unpack
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import SEED_BYTES, Entropy, centred
from dordis.privacy.planning import Setting
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import CollectInput, MaskedInput, RemoveNoise, Unmask
from dordis.simulation.availability import ByRate
from dordis.simulation.single import home_of_updates, single_round

DIM, CLIP = 16, 2.5
MOST_CLIENTS = 200  # more would make the wait long
WORDS = {CollectInput: "upload", Unmask: "unmasking", RemoveNoise: "noise removal"}
STAGES = {kind.__name__: word for kind, word in WORDS.items()}


@dataclass(frozen=True)
class DemoRound:
    """Hold what the demo shows: `vanished` tells at which stage; the true mean is known to the simulation only."""

    design: Design
    vanished: Mapping[ClientId, str]
    seen: Mapping[ClientId, bytes]
    output: ChunkOutput
    true_mean: Floats
    mean: Floats
    expected_error: float
    traffic: float


def simulate(clients: int, dropped: int, epsilon: float, entropy: Entropy = secrets.token_bytes) -> DemoRound:
    """Run one round in which `dropped` clients, chosen at random, vanish at a random stage after sharing their keys."""
    design = settle(clients, dropped, epsilon)
    ids = tuple(ClientId(u) for u in range(1, clients + 1))
    values = {u: draw(entropy) for u in ids}
    vanishing = ByRate(entropy(SEED_BYTES), (dropped + 0.5) / clients if dropped else 0.0, tuple(STAGES))
    home = home_of_updates(design, SECAGG, values.__getitem__, entropy, vanishing)
    seen: dict[ClientId, bytes] = {}
    tap = partial(tapped, uploads=seen)
    finished = single_round(home, rounds=lambda run, selection: home.open(run, selection, {}, tap))
    record, (output,) = finished.record, finished.result.outputs
    scale, count = design.mechanism.grid.scale, len(output.survivors)
    return DemoRound(
        design,
        vanishing.leaving(0, ids),
        seen,
        output,
        true_mean=np.mean([values[u] for u in output.survivors], axis=0),
        mean=finished.result.aggregate.mean,
        expected_error=sqrt(output.left + count / 6) / (scale * count),
        traffic=((record.up or 0) + (record.down or 0)) / clients,
    )


def settle(clients: int, dropped: int, epsilon: float) -> Design:
    """Plan the noise of one round, or refuse the wish."""
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(f"the demo takes 3 to {MOST_CLIENTS} clients, not {clients}")
    setting = Setting(ParticipationSchedule(clients, clients, rounds=1), DIM, CLIP)
    if not 0 <= dropped <= setting.T:
        raise InputError(f"of {clients} clients 0 to {setting.T} may drop out, not {dropped}")
    return Design(XNoise(), setting, epsilon, ProtocolKind(MALICIOUS))


def tapped(exchange: Exchange, uploads: dict[ClientId, bytes]) -> Exchange:
    """Return an exchange that keeps the uploads that pass through it: what a curious server looks at."""

    def deliver(requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for u, reply in exchange(requests):
            if isinstance(reply, MaskedInput):
                uploads[u] = reply.vector
            yield u, reply

    return deliver


def draw(entropy: Entropy) -> Floats:
    """Draw a client's values: half a cosine wave and a spread of 1, of norm below the clip."""
    spread: Floats = np.frombuffer(entropy(4 * DIM), np.uint32) / 2**32 - 0.5
    return (spread + np.cos(np.linspace(0, np.pi, DIM))) / 2


def vectors(shown: DemoRound, coordinates: int) -> Table:
    """Show the first coordinates as the simulation, the server and everyone know them."""
    watched = shown.output.survivors[0]
    grid, clients = shown.design.mechanism.grid, shown.design.setting.clients
    upload = unpack(shown.seen[watched], grid.bits, grid.padded)
    rows = {
        "true mean of the survivors": shown.true_mean,
        "private mean": shown.mean,
        f"the server saw of client {watched}": centred(upload, grid.bits) / grid.scale,
    }
    cells = ((name, *(f"{value:.3f}" for value in row[:coordinates])) for name, row in rows.items())
    heads = map(str, range(coordinates))
    return tables.table("coordinate", *heads, rows=cells, title=f"Mean over {clients} clients")


def facts(shown: DemoRound, seconds: float) -> Table:
    """Show the error, the noise, who dropped where, and the cost."""
    error = np.sqrt(np.mean((shown.mean - shown.true_mean) ** 2))
    gone = {word: [str(u) for u, at in shown.vanished.items() if at == stage] for stage, word in STAGES.items()}
    return tables.facts(
        {
            "epsilon, delta": f"{shown.design.epsilon:.3g}, {shown.design.delta:.3g}, whoever drops",
            "error, root mean square": f"{error:.4f}, expected {shown.expected_error:.4f}",
            "noise variance left / charged": f"{float(shown.output.left):.1f} / {float(shown.output.charged):.1f}",
            **{f"vanished at {word}": ", ".join(clients) or "nobody" for word, clients in gone.items()},
            "bytes per client, both ways": f"{shown.traffic:,.0f}",
            "seconds": f"{seconds:.2f}",
        }
    )


def fields(shown: DemoRound, seconds: float) -> dict[str, object]:
    """Return what is printed as JSON."""
    return {
        "clients": shown.design.setting.clients,
        "epsilon": shown.design.epsilon,
        "delta": shown.design.delta,
        "true_mean": shown.true_mean.tolist(),
        "mean": shown.mean.tolist(),
        "expected_error": shown.expected_error,
        "noise_left": float(shown.output.left),
        "noise_charged": float(shown.output.charged),
        "vanished": {str(u): STAGES[at] for u, at in shown.vanished.items()},
        "bytes_per_client": shown.traffic,
        "seconds": seconds,
    }
