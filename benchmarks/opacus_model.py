"""The model of `benchmarks.records`, in a file that both sides import."""

import torch


def mnist_cnn() -> torch.nn.Module:
    """Return the small CNN of Opacus's example for MNIST: 26,010 parameters."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
