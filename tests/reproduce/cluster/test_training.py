"""The seconds of a client's training, which need PyTorch."""

import pytest

from reproduce.cluster import training


@pytest.mark.slow
@pytest.mark.torch
def test_training_takes_processor_time_and_leaves_the_threads_of_torch_alone(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(training, "IMAGES", 40)
    threads = torch.get_num_threads()
    assert training.measure_training() > 0
    assert torch.get_num_threads() == threads
