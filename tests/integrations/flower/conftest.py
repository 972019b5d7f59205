"""Nodes in memory stand for those of Flower's simulation engine, unless a test says that they are somewhere else."""

import pytest


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    """Let nodes of this process take themselves for simulated ones."""
    monkeypatch.setattr("dordis.integrations.flower.mod.is_simulated", lambda: True)


@pytest.fixture
def deployed(_simulated, monkeypatch):
    """Let them find out for themselves that nothing simulates them, as SuperNodes do."""
    from dordis.integrations.flower import pins

    monkeypatch.setattr("dordis.integrations.flower.mod.is_simulated", pins.is_simulated)
