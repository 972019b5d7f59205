"""Training runs of sections: the most volatile devices, and epsilons that ledgers record."""

from pathlib import Path

import numpy as np
import pytest

from dordis.errors import InputError
from reproduce.paper import figures_1d_8_epsilon
from reproduce.paper.training import require_trace, run_training, write_volatile


def test_the_most_volatile_of_all_devices_are_taken(tmp_path: Path) -> None:
    slots = np.zeros((9, 4), np.int8)
    slots[::2, 1] = slots[:5, 2] = slots[:, 3] = 1
    slots[1, 3] = -1
    np.savez(tmp_path / "avail.npz", avail=slots)
    write_volatile(require_trace(tmp_path), 2, tmp_path / "two.npz")
    with np.load(tmp_path / "two.npz") as stored:
        assert (stored["avail"] == slots[:, [1, 3]]).all()


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="availability"):
        require_trace(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "epsilon"), [("orig", 8.70), ("xnoise", 6.0)])
def test_runs_record_the_paper_s_epsilon(noise: str, epsilon: float) -> None:
    found = run_training(figures_1d_8_epsilon.job("Reddit", noise, 0.4).arguments, None)
    assert found["epsilon"][-1] == pytest.approx(epsilon, abs=0.02)
    assert found["dropped"] == pytest.approx([0.4] * 50)
