"""A CNN of at most 100,000 parameters for CIFAR-10."""

import torch


class SmallCnn(torch.nn.Sequential):
    """Three convolutions and a linear layer: 66,570 parameters for images of 3 x 32 x 32 and 10 classes."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(
            torch.nn.Unflatten(1, (3, 32, features // 96)),
            torch.nn.Conv2d(3, 32, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 64, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(64, 64, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(1024, classes),
        )
