"""Without the privacy gate, whoever stops a server at the right moment has a sum that no ledger knows of."""

import numpy as np
import pytest

import dordis
from dordis.apps.analytics.release import query_ledger
from dordis.federation.ledger import verify
from tests.adversarial.theft import Stolen, raise_stolen, stop_at_the_sum, take_out_gate

GATED = pytest.mark.parametrize("gated", [True, False], ids=["with the gate", "without it"])


def check_charged(path, gated):
    """The clients of the stolen sum are charged with the gate, and only then."""
    assert (verify(path).epsilon > 0) is gated


@pytest.fixture
def thief(monkeypatch, gated):
    stop_at_the_sum(monkeypatch, raise_stolen)
    if not gated:
        take_out_gate(monkeypatch)


@GATED
@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_run(thief, tmp_path, gated, fidelity):
    config = {
        "output": str(tmp_path),
        "federation": {"clients": 20, "per_round": 10, "rounds": 2},
        "simulation": {"fidelity": fidelity},
    }
    with pytest.raises(Stolen):
        dordis.run(config)
    (path,) = tmp_path.rglob("ledger.jsonl")
    check_charged(path, gated)


@GATED
@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_query(thief, tmp_path, gated, fidelity):
    path = tmp_path / "ledger.jsonl"
    query_ledger(path, 1e-5, None)
    with pytest.raises(Stolen):
        dordis.mean(np.linspace(0, 1, 20), epsilon=1.0, bounds=(0, 1), delta=1e-5, ledger=path, fidelity=fidelity)
    check_charged(path, gated)
