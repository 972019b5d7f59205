"""`dordis demo` simulates one private round, and shows what the server sees of it, the private mean, and the costs.

One round of SecAgg with XNoise computes the mean of the clients' vectors, and some clients drop out.  The server is not
trusted: keys are signed, clients agree on U3 (the clients in the sum), and every client has an owner with a policy.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.output import facts_table, make_table, print_result, show_progress
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.pipeline.executor import Exchange
    from dordis.privacy.encoding import Entropy
    from dordis.privacy.scaling import Floats
    from dordis.protocol import ClientId, Message, Requests
    from dordis.protocols.noise_addition_and_removal import ChunkOutput
    from dordis.runs.plan import RoundPlan

COORDINATES = 4
"""Number of coordinates of each vector that are printed."""
DIM, CLIP = 16, 2.5
MOST_CLIENTS = 200  # more would make the wait long
STAGES = {"CollectInput": "upload", "Unmask": "unmasking", "RemoveNoise": "noise removal"}
"""The requests of SecAgg before which a client may drop out, and the words for them."""


def demo(
    clients: Annotated[int, typer.Option(help="How many clients take part.")] = 50,
    dropped: Annotated[int, typer.Option(help="How many of them drop out during the round.")] = 5,
    epsilon: Annotated[float, typer.Option(help="The privacy budget of the round.")] = 6.0,
    as_json: Json = False,
) -> None:
    """Show one private round from the inside."""
    started = time.perf_counter()
    with show_progress(f"one round of {clients} clients"):
        outcome = simulate_round(clients, dropped, epsilon)
    seconds = time.perf_counter() - started
    terms = "For each client, against a malicious server that colludes with one other client; see docs/security.md."
    tables = mean_table(outcome), outcome_table(outcome, seconds)
    print_result(as_json, outcome_fields(outcome, seconds), *tables, terms)


@dataclass(frozen=True)
class DemoRound:
    """Outcome of the demo.

    `vanished` has the name of each dropout's first unanswered request, `seen` each masked upload, both by client.
    """

    design: "RoundPlan"
    vanished: "Mapping[ClientId, str]"
    seen: "Mapping[ClientId, bytes]"
    output: "ChunkOutput"
    true_mean: "Floats"
    mean: "Floats"
    expected_error: float
    traffic: float


def simulate_round(clients: int, dropped: int, epsilon: float, entropy: "Entropy" = secrets.token_bytes) -> DemoRound:
    """Run one round in which `dropped` random clients drop out, each before a request drawn at random from STAGES."""
    import numpy as np

    from dordis.dropout_models import RateDropout
    from dordis.privacy.encoding import SEED_BYTES
    from dordis.protocol import ClientId
    from dordis.protocols.secagg import SECAGG
    from dordis.simulation.run import home_of_updates, single_round

    design = plan_demo(clients, dropped, epsilon)
    ids = tuple(ClientId(u) for u in range(1, clients + 1))
    values = {u: draw_values(entropy) for u in ids}
    vanishing = RateDropout(entropy(SEED_BYTES), (dropped + 0.5) / clients if dropped else 0.0, tuple(STAGES))
    home = home_of_updates(design, SECAGG, values.__getitem__, entropy, vanishing)
    seen: dict[ClientId, bytes] = {}
    tap = partial(record_uploads, uploads=seen)
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


def plan_demo(clients: int, dropped: int, epsilon: float) -> "RoundPlan":
    """Plan the noise of one round; raise InputError for too few or too many clients or dropouts."""
    from dordis.privacy.accounting import ParticipationSchedule
    from dordis.privacy.noise_strategies import XNoise
    from dordis.privacy.setting import Setting
    from dordis.protocols.parameters import MALICIOUS
    from dordis.runs.plan import RoundPlan
    from dordis.runs.threat_model import ThreatModel

    if not 3 <= clients <= MOST_CLIENTS:
        raise InputError(f"the demo takes 3 to {MOST_CLIENTS} clients, not {clients}")
    setting = Setting(ParticipationSchedule(clients, clients, rounds=1), DIM, CLIP)
    if not 0 <= dropped <= setting.T:
        raise InputError(f"of {clients} clients 0 to {setting.T} may drop out, not {dropped}")
    return RoundPlan(XNoise(), setting, epsilon, ThreatModel(MALICIOUS))


def record_uploads(exchange: "Exchange", uploads: "dict[ClientId, bytes]") -> "Exchange":
    """Return an exchange that stores in `uploads` the uploads that pass through it, as a curious server could."""
    from dordis.protocols.secagg.messages import MaskedInput

    def deliver(requests: "Requests") -> "Iterator[tuple[ClientId, Message]]":
        for u, reply in exchange(requests):
            if isinstance(reply, MaskedInput):
                uploads[u] = reply.vector
            yield u, reply

    return deliver


def draw_values(entropy: "Entropy") -> "Floats":
    """Draw a client's vector at random around half a cosine wave; its norm is below the clip bound."""
    import numpy as np

    spread: Floats = np.frombuffer(entropy(4 * DIM), np.uint32) / 2**32 - 0.5
    return (spread + np.cos(np.linspace(0, np.pi, DIM))) / 2


def mean_table(outcome: DemoRound) -> "Table":
    """Return a table: the first coordinates of the true mean, of the private mean, and of one masked upload."""
    from dordis.kernels.ring import unpack
    from dordis.privacy.encoding import centre

    watched = outcome.output.survivors[0]
    grid, clients = outcome.design.mechanism.grid, outcome.design.setting.clients
    upload = unpack(outcome.seen[watched], grid.bits, grid.padded)
    rows = {
        "true mean of the survivors": outcome.true_mean,
        "private mean": outcome.mean,
        f"the server saw of client {watched}": centre(upload, grid.bits) / grid.scale,
    }
    cells = ((name, *(f"{value:.3f}" for value in row[:COORDINATES])) for name, row in rows.items())
    heads = map(str, range(COORDINATES))
    return make_table("coordinate", *heads, rows=cells, title=f"Mean over {clients} clients")


def outcome_table(outcome: DemoRound, seconds: float) -> "Table":
    """Return a table: epsilon, error of the private mean, noise variance, dropouts by stage, traffic and time."""
    error = sqrt(((outcome.mean - outcome.true_mean) ** 2).mean())
    gone = {word: [str(u) for u, at in outcome.vanished.items() if at == stage] for stage, word in STAGES.items()}
    return facts_table(
        {
            "epsilon, delta": f"{outcome.design.epsilon:.3g}, {outcome.design.delta:.3g}, for any dropout",
            "error, root mean square": f"{error:.4f}, expected {outcome.expected_error:.4f}",
            "noise variance left / charged": f"{float(outcome.output.left):.1f} / {float(outcome.output.charged):.1f}",
            **{f"vanished at {word}": ", ".join(clients) or "nobody" for word, clients in gone.items()},
            "bytes per client, both ways": f"{outcome.traffic:,.0f}",
            "seconds": f"{seconds:.2f}",
        }
    )


def outcome_fields(outcome: DemoRound, seconds: float) -> dict[str, object]:
    """Return the outcome as JSON fields."""
    return {
        "clients": outcome.design.setting.clients,
        "epsilon": outcome.design.epsilon,
        "delta": outcome.design.delta,
        "true_mean": outcome.true_mean.tolist(),
        "mean": outcome.mean.tolist(),
        "expected_error": outcome.expected_error,
        "noise_left": float(outcome.output.left),
        "noise_charged": float(outcome.output.charged),
        "vanished": {str(u): STAGES[at] for u, at in outcome.vanished.items()},
        "bytes_per_client": outcome.traffic,
        "seconds": seconds,
    }
