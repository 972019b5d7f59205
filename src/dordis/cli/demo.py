"""A private mean over simulated clients: one round of SecAgg with XNoise, in one process, some clients vanishing.

The server is not trusted: keys are signed, U3 is agreed on, and every client has an owner with a policy.
"""

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
from dordis.federation.owner import Owner
from dordis.federation.participation import MemoryParticipation
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.selection import Balanced
from dordis.kernels.packing import unpack
from dordis.kernels.ring import Vector
from dordis.privacy.accounting import Participation
from dordis.privacy.encoding import centred
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.planning import Plan, Setting, plan
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.distributed_dp import DistributedDP, agree_on
from dordis.protocols.parameters import MALICIOUS, Parameters
from dordis.protocols.secagg import ChunkOutput, SecAggClient, SecAggServer
from dordis.protocols.secagg.masking import Entropy
from dordis.protocols.secagg.messages import REPLIES, CollectInput, MaskedInput, RemoveNoise, Unmask
from dordis.simulation.exchange import LocalExchange

Floats = npt.NDArray[np.float64]
DIM, CLIP = 16, 2.5
MOST_CLIENTS = 200  # more would make the wait long
STAGES = {CollectInput: "upload", Unmask: "unmasking", RemoveNoise: "noise removal"}


@dataclass(frozen=True)
class Outcome:
    """Hold what the demo shows: `vanished` tells at which stage; the true mean is known to the simulation only."""

    plan: Plan
    vanished: Mapping[ClientId, int]
    seen: Mapping[ClientId, Vector]
    output: ChunkOutput
    true_mean: Floats
    mean: Floats
    expected_error: float
    traffic: float


def simulate(clients: int, dropped: int, epsilon: float, entropy: Entropy = secrets.token_bytes) -> Outcome:
    """Run one round in which `dropped` clients, chosen at random, vanish at a random stage after sharing their keys."""
    planned = settle(clients, dropped, epsilon)
    keys = {ClientId(u): Keys.generate(entropy) for u in range(1, clients + 1)}
    registry = Registry({u: own.identity() for u, own in keys.items()})
    run, rotation = entropy(32), entropy(32)
    mechanism, ids = DSkellam.of(planned), list(keys)
    parameters = agree_on(
        mechanism, planned.setting, planned, run=run, index=0, clients=ids, rotation=rotation, mode=MALICIOUS
    )
    private = DistributedDP(parameters, mechanism)
    values = {u: draw(entropy) for u in keys}
    parties = {
        u: SecAggClient(
            u,
            private.encode(x, entropy),
            entropy=entropy,
            owner=Owner(u, Policy(), Balanced(registry, run, clients, clients), MemoryParticipation(cap=1)),
            signing=keys[u].signing,
            registry=registry.signing_keys(),
        )
        for u, x in values.items()
    }
    vanished = leaving(parameters, dropped, entropy)
    exchange = LocalExchange(parties, REPLIES, lambda u, request: misses(vanished, u, request))
    seen: dict[ClientId, Vector] = {}
    (output,) = drive.run(SecAggServer(parameters, registry.signing_keys()), tapped(exchange, parameters, seen))
    unit = planned.scale * len(output.survivors)
    return Outcome(
        planned,
        vanished,
        seen,
        output,
        true_mean=np.mean([values[u] for u in output.survivors], axis=0),
        mean=private.decode([output]).mean,
        expected_error=sqrt(output.left + len(output.survivors) / 6) / unit,
        traffic=(exchange.sent.total() + exchange.received.total()) / clients,
    )


def settle(clients: int, dropped: int, epsilon: float) -> Plan:
    """Plan the noise of one round, or refuse the wish."""
    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(f"the demo takes 3 to {MOST_CLIENTS} clients, not {clients}")
    planned = plan(Setting(Participation(clients, clients, rounds=1), DIM, CLIP), epsilon)
    if not 0 <= dropped <= planned.setting.T:
        raise InputError(f"of {clients} clients 0 to {planned.setting.T} may drop out, not {dropped}")
    return planned


def leaving(parameters: Parameters, dropped: int, entropy: Entropy) -> dict[ClientId, int]:
    """Choose who vanishes, and at which stage."""
    chosen = sorted(parameters.clients, key=lambda _: entropy(16))[:dropped]
    return {u: int.from_bytes(entropy(8)) % len(STAGES) for u in sorted(chosen)}


def misses(vanished: Mapping[ClientId, int], u: ClientId, request: Message) -> bool:
    """Tell whether a request finds its client gone."""
    later = list(STAGES)[vanished.get(u, len(STAGES)) :]
    return type(request) in later


def draw(entropy: Entropy) -> Floats:
    """Draw a client's values: half a cosine wave and a spread of 1, of norm below the clip."""
    spread: Floats = np.frombuffer(entropy(4 * DIM), np.uint32) / 2**32 - 0.5
    return (spread + np.cos(np.linspace(0, np.pi, DIM))) / 2


def tapped(exchange: drive.Exchange, parameters: Parameters, seen: dict[ClientId, Vector]) -> drive.Exchange:
    """Keep the uploads that pass through an exchange: what a curious server looks at."""

    def deliver(requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for u, reply in exchange(requests):
            if isinstance(reply, MaskedInput):
                seen[u] = unpack(reply.vector, parameters.bits, parameters.dim)
            yield u, reply

    return deliver


def demo(clients: int, dropped: int, epsilon: float, shown: int = 4) -> None:
    """Run the simulation and print what each party knows of the first few coordinates, and what it cost."""
    started = time.perf_counter()
    outcome = simulate(clients, dropped, epsilon)
    seconds = time.perf_counter() - started
    console = Console(soft_wrap=True)
    console.print(vectors(outcome, shown))
    console.print(facts(outcome, seconds))
    console.print("For each client, against a server that may deviate and one more client; see docs/security.md.")


def vectors(outcome: Outcome, shown: int) -> Table:
    """Show the first coordinates as the simulation, the server and everyone know them."""
    watched = outcome.output.survivors[0]
    rows = {"true mean of the survivors": outcome.true_mean, "private mean": outcome.mean}
    rows[f"the server saw of client {watched}"] = centred(outcome.seen[watched], outcome.plan.bits) / outcome.plan.scale
    clients = outcome.plan.setting.clients
    table = Table("coordinate", *map(str, range(shown)), title=f"Mean over {clients} clients")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in row[:shown]))
    return table


def facts(outcome: Outcome, seconds: float) -> Table:
    """Show the error, the noise, who dropped where, and the cost."""
    error = np.sqrt(np.mean((outcome.mean - outcome.true_mean) ** 2))
    table = Table("what", "value", show_header=False)
    setting = outcome.plan.setting
    table.add_row("epsilon, delta", f"{outcome.plan.epsilon:.3g}, {setting.given_delta:.3g}, whoever drops")
    table.add_row("error, root mean square", f"{error:.4f}, expected {outcome.expected_error:.4f}")
    left, charged = float(outcome.output.left), float(outcome.output.charged)
    table.add_row("noise variance left / charged", f"{left:.1f} / {charged:.1f}")
    for place, stage in enumerate(STAGES.values()):
        gone = [str(u) for u, since in outcome.vanished.items() if since == place]
        table.add_row(f"vanished at {stage}", ", ".join(gone) or "nobody")
    table.add_row("bytes per client, both ways", f"{outcome.traffic:,.0f}")
    table.add_row("seconds", f"{seconds:.2f}")
    return table
