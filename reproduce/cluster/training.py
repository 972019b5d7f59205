"""The seconds of a client's training: the paper's CNN on as many images as a FEMNIST client of the paper has."""

from time import thread_time

import numpy as np

from dordis.apps.learning.networks import Inputs, cnn

IMAGES, BATCH, EPOCHS, RATE, MOMENTUM = 680, 20, 2, 0.01, 0.9
"""Three writers of FEMNIST (805k images of 3,550 writers), and section 6.1's settings."""


def measure_training() -> float:
    """Return the CPU seconds of one client's training on one core; raise MissingExtra without PyTorch."""
    model = cnn(Inputs((28, 28), 62))
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        images = torch.from_numpy(np.random.default_rng(1).random((IMAGES, 28 * 28), np.float32))
        labels = torch.arange(IMAGES) % 62
        optimiser = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
        start = thread_time()
        for _ in range(EPOCHS):
            for first in range(0, IMAGES, BATCH):
                optimiser.zero_grad()
                scores = model(images[first : first + BATCH])
                torch.nn.functional.cross_entropy(scores, labels[first : first + BATCH]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return thread_time() - start
    finally:
        torch.set_num_threads(threads)
