"""New ledgers, rounds for them to charge, what becomes of these, and what they cost by a second computation."""

import hashlib
import json
import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import dp_accounting
import msgspec

from dordis.ledger.client_spending import Budget
from dordis.ledger.ledger import Charge, Ledger
from dordis.privacy.xnoise_components import Scheme, removal_context
from dordis.protocols.cohort import agree_on
from dordis.protocols.parameters import Encoding, Parameters
from tests.runs.cohorts import RUN

SQUARED = 400
DIM = 64
VARIANCES = (Fraction(8000), Fraction(9000))
DELTA = 1e-5


def new_ledger(run: bytes, budget: Budget) -> Ledger:
    """Begin a ledger in a directory of its own, which goes with it."""
    folder = TemporaryDirectory()
    ledger = Ledger.create(Path(folder.name) / "ledger.jsonl", run, budget)
    weakref.finalize(ledger, folder.cleanup)
    return ledger


def parameters_of(index=0, clients=range(6), scheme=Scheme.SINGLE, variances=VARIANCES, run=RUN) -> Parameters:
    """Return a round of two chunks which tolerates one dropout and one colluder."""
    everyone = sorted(clients)
    return agree_on(
        run=run,
        index=index,
        clients=everyone,
        threshold=len(everyone) - 1,
        tolerance=1,
        bits=20,
        ends=[DIM * (chunk + 1) // len(variances) for chunk in range(len(variances))],
        variances=variances,
        scheme=scheme,
        encoding=Encoding(mechanism="skellam", clip=1.0, sensitivity=SQUARED, scale=16.0),
    )


def charge_of(index=0, clients=range(6), **options) -> Charge:
    return Charge.from_parameters(parameters_of(index, clients, **options))


@dataclass(frozen=True)
class Ended:
    """What a chunk's output tells."""

    survivors: tuple[int, ...]
    left: Fraction
    charged: Fraction
    signatures: Mapping[int, bytes] = field(default_factory=dict)


def ended(parameters: Parameters, *dropped: Collection[int]) -> list[Ended]:
    """Return the outcome of every chunk, given who dropped from each."""
    outcomes = []
    for chunk, (plan, gone) in enumerate(zip(parameters.plans, dropped, strict=True)):
        u3 = tuple(u for u in parameters.clients if u not in gone)
        named = removal_context(parameters.round, chunk, parameters.digest)
        outcomes.append(Ended(u3, plan.variance_left(u3, named), plan.charged_variance(u3, named)))
    return outcomes


def spent(releases: Sequence[tuple[int, int, Fraction]], delta: float = DELTA) -> float:
    """Return epsilon of releases (Delta2^2, d, variance): that of Gaussian noise which is as private, by dp-accounting.

    Only the theorem is taken from here: noise of variance mu counts as Gaussian noise of variance mu - 1/2.
    """
    if not releases:
        return 0.0
    squares = sum(squared / (float(variance) - 0.5) for squared, _, variance in releases)
    return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(squares), delta))


def forge(path: Path, change) -> None:
    """Rewrite the entries as a careful forger would, with all hashes right."""
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(entries)
    previous, forged = entries[0]["previous"], b""
    for entry in entries:
        entry.pop("check", None)
        body = msgspec.json.encode(entry | {"previous": previous})[:-1]
        line = body + b',"check":"%b"}\n' % hashlib.sha256(body).hexdigest().encode()
        previous, forged = hashlib.sha256(line).hexdigest(), forged + line
    path.write_bytes(forged)
