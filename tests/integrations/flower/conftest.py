"""Nodes in memory stand for those of Flower's simulation engine, unless a test says that they are somewhere else."""

import pytest


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    """Let nodes of this process take themselves for simulated ones."""
    monkeypatch.setattr("dordis.integrations.flower.mod.is_simulated", lambda: True)


@pytest.fixture
def deployed(_simulated, monkeypatch):
    """Let them find out for themselves that nothing simulates them, as SuperNodes do; time is not waited for."""
    from dordis.integrations.flower import pins
    from dordis.rounds.user_code import ZeroOnFailure

    monkeypatch.setattr("dordis.integrations.flower.mod.is_simulated", pins.is_simulated)
    monkeypatch.setattr(
        "dordis.integrations.flower.mod.user_code_for", lambda seconds, tell, note: ZeroOnFailure(tell, note)
    )
