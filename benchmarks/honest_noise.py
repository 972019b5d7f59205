"""The paper's ResNet-18 on CIFAR-10 with noise of the right size: updates, their sum and the noise, round by round.

python -m benchmarks.honest_noise --data-dir DIR [--rounds 10] [--limit 16] [--tested 500] [-c KEY=VALUE]

The first rounds of the preset cifar10, at ideal fidelity and without dropout.  A client takes `limit` images of its own
in a round, drawn anew each time, so that a round takes a minute on two processors; what is clipped has the norm of the
clip bound either way.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dordis.config import reading
from dordis.rounds.app import AppClient, RoundInfo
from dordis.simulation.run import prepare

Numbers = npt.NDArray[np.floating]


@dataclass
class Seen:
    """What the clients of the current round gave, which in a real run nobody sees."""

    norms: list[float] = field(default_factory=list)
    total: Numbers | None = None


class Observed(AppClient):
    """A client whose update is looked at before it leaves: its norm, and what clipping leaves of it."""

    def __init__(self, inner: AppClient, seen: Seen) -> None:
        self._inner, self._seen = inner, seen

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Numbers:
        update = self._inner.prepare_data(round, model)
        norm = float(np.linalg.norm(update))
        self._seen.norms.append(norm)
        clipped = update * min(1.0, round.clip / norm)
        self._seen.total = clipped if self._seen.total is None else self._seen.total + clipped
        return update


def measured(keys: list[str], rounds: int) -> list[dict[str, float]]:
    """Run rounds; return for each the norms of updates, of their clipped sum and of the noise, and the accuracy."""
    job, seen, found = prepare(reading.read_config(None, "cifar10", keys)), Seen(), []
    observed = replace(job, client=lambda u: Observed(job.client(u), seen))
    design = job.job.design
    with tempfile.TemporaryDirectory() as folder:
        for finished in islice(observed.start(Path(folder), "").rounds(), rounds):
            noisy = finished.result.aggregate.total
            found.append(
                {
                    "round": finished.record.number,
                    "update": float(np.mean(seen.norms)),
                    "sum": float(np.linalg.norm(seen.total)),
                    "noise": float(np.linalg.norm(noisy - seen.total)),
                    "noise planned": design.sigma * np.sqrt(noisy.size),
                    **finished.metrics.values,
                    "epsilon": finished.record.epsilon,
                }
            )
            print(json.dumps(found[-1]), flush=True)
            seen.norms, seen.total = [], None
    return found


def main() -> None:
    """Run, and print one JSON object a round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--tested", type=int, default=500)
    parser.add_argument("-c", dest="keys", action="append", default=[])
    given = parser.parse_args()
    options = {
        "data_dir": f"'{given.data_dir.resolve()}'",
        "limit": given.limit,
        "tested": given.tested,
    }
    fixed = ["simulation.fidelity=ideal", "simulation.dropout.kind=none"]
    measured([*fixed, *(f"app.options.{name}={value}" for name, value in options.items()), *given.keys], given.rounds)


if __name__ == "__main__":
    main()
