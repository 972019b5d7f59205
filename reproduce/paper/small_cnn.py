"""A CNN of at most 100,000 parameters for CIFAR-10."""

import torch


class SmallCnn(torch.nn.Sequential):
    """Three normalised convolutions and a linear layer: 66,890 parameters for images of 3 x 32 x 32, 10 classes.

    Normalisation by groups keeps training finite when noise drowns the weights.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(
            torch.nn.Unflatten(1, (3, 32, features // 96)),
            torch.nn.Conv2d(3, 32, 3, padding=1),
            torch.nn.GroupNorm(8, 32),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 64, 3, padding=1),
            torch.nn.GroupNorm(8, 64),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(64, 64, 3, padding=1),
            torch.nn.GroupNorm(8, 64),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(1024, classes),
        )
