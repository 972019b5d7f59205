"""The round that `dordis demo` shows: dropouts, the error of the mean, and what the server sees."""

import numpy as np
import pytest

from dordis.cli.commands.demo import DIM, simulate_round
from dordis.errors import InputError
from dordis.kernels.ring import unpack


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [0, 1, 3])
def test_the_error_of_the_demo_is_the_noise_that_must_stay(dropped: int) -> None:
    outcomes = [simulate_round(clients=10, dropped=dropped, epsilon=1) for _ in range(6)]
    for outcome in outcomes:
        assert len(outcome.vanished) == dropped
        gone = [u for u, stage in outcome.vanished.items() if stage == "CollectInput"]
        assert outcome.output.survivors == tuple(u for u in range(1, 11) if u not in gone)
        assert outcome.output.left >= outcome.output.charged >= outcome.design.plan.variance
    ratio = np.mean([(o.mean - o.true_mean) ** 2 / o.expected_error**2 for o in outcomes])
    assert abs(ratio - 1) < 8 * np.sqrt(2 / (6 * DIM))


def test_the_demo_takes_as_many_losses_as_the_noise_tolerates() -> None:
    with pytest.raises(InputError):
        simulate_round(clients=6, dropped=2, epsilon=6)
    assert len(simulate_round(clients=6, dropped=1, epsilon=6).vanished) == 1


def test_the_server_sees_uniform_garbage() -> None:
    outcomes = [simulate_round(clients=5, dropped=0, epsilon=6) for _ in range(4)]
    grids = [outcome.design.mechanism.grid for outcome in outcomes]
    seen = np.concatenate([
        unpack(upload, grid.bits, grid.padded) / 2**grid.bits
        for outcome, grid in zip(outcomes, grids, strict=True) for upload in outcome.seen.values()
    ])  # fmt: skip
    assert abs(seen.mean() - 0.5) < 8 / np.sqrt(12 * seen.size)
    assert abs((seen < 0.1).mean() + (seen > 0.9).mean() - 0.2) < 8 * np.sqrt(0.16 / seen.size)
