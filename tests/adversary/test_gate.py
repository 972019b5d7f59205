"""Without the privacy gate, whoever stops a server at the right moment has a sum that no ledger knows of."""

import numpy as np
import pytest

import dordis
from dordis.ledger.combine_runs import open_data_ledger
from dordis.ledger.ledger import Ledger, verify_ledger
from dordis.protocol import OpenCall
from tests.adversary.theft import Stolen, raise_stolen, stop_at_the_sum, take_out_gate
from tests.protocols.shared_example import EXAMPLE

GATED = pytest.mark.parametrize("gated", [True, False], ids=["with the gate", "without it"])


def check_charged(path, gated):
    """The clients of the stolen sum are charged with the gate, and only then."""
    assert (verify_ledger(path).epsilon > 0) is gated


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


OPEN = {
    "federation": {"clients": 20, "per_round": 10, "rounds": 2, "arrival": "open"},
    "protocol": {"use": f"{EXAMPLE.__name__}:SHARED", "mode": "semi-honest", "tolerance": 4},
}


@GATED
@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_run_in_which_clients_come(thief, tmp_path, gated, fidelity):
    with pytest.raises(Stolen):
        dordis.run({"output": str(tmp_path), "simulation": {"fidelity": fidelity}, **OPEN})
    (path,) = tmp_path.rglob("ledger.jsonl")
    check_charged(path, gated)


@GATED
def test_a_contribution_that_was_just_acknowledged(tmp_path, monkeypatch, gated):
    """The operator stops the server and keeps what came: the owner has counted it, and the ledger has, or has not."""
    stolen = []

    def stopping_call(request, most, admit, *more):
        def acknowledge(u, reply):
            admit(u, reply)  # once this returns, the client is told that its contribution was taken
            stolen.append(int(u))
            if len(stolen) == 3:
                raise Stolen

        return OpenCall(request, most, acknowledge, *more)

    monkeypatch.setattr("dordis.rounds.arrivals.OpenCall", stopping_call)
    if not gated:
        take_out_gate(monkeypatch)
    with pytest.raises(Stolen):
        dordis.run({"output": str(tmp_path), "simulation": {"fidelity": "full"}, **OPEN})
    (path,) = tmp_path.rglob("ledger.jsonl")
    counted = [u for charge in Ledger.open(path).owner_charges().values() for u in charge.clients]
    assert counted == (sorted(stolen) if gated else [])


@GATED
@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_query(thief, tmp_path, gated, fidelity):
    path = tmp_path / "ledger.jsonl"
    open_data_ledger(path, 1e-5, None)
    with pytest.raises(Stolen):
        dordis.mean(np.linspace(0, 1, 20), epsilon=1.0, bounds=(0, 1), delta=1e-5, ledger=path, fidelity=fidelity)
    check_charged(path, gated)
