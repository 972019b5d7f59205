"""Rounds of federated learning in Apple's pfl-research: `python pfl_side.py JOB.npz SETTINGS`, in an environment of it.

Nothing of dordis is imported here.  One JSON object is printed: when each round ended, on the clock and in processor
seconds, and what the test data said of the last model.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

EVALUATED = 64
"""Inputs that are evaluated at once, as with us."""


class Network(torch.nn.Module):
    """A network with the loss and the metrics that pfl asks for."""

    def __init__(self, layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of a batch."""
        self.train()
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Return loss and accuracy."""
        self.eval()
        scores = self.layers(x)
        loss = torch.nn.functional.cross_entropy(scores, y, reduction="sum").item()
        right = (scores.argmax(-1) == y).sum().item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}


class RoundClock(TrainingProcessCallback[Any]):
    """Note when each round ended; the last callback, so that evaluation is counted."""

    def __init__(self) -> None:
        self.times, self.spent = [time.perf_counter()], [time.process_time()]
        self.values: dict[str, float] = {}

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note both clocks, and the newest metrics."""
        self.times.append(time.perf_counter())
        self.spent.append(time.process_time())
        found = aggregate_metrics.to_simple_dict()
        self.values |= {name.split(" | ")[-1]: value for name, value in found.items() if name.startswith("Central val")}
        return False, Metrics()


def layers(name: str, features: int, classes: int) -> torch.nn.Module:
    """Return softmax regression, or the CNN of `dordis.apps.learning.networks`."""
    nn = torch.nn
    if name == "softmax":
        return nn.Linear(features, classes)
    side = round(features**0.5)
    pooled = (side - 2) // 2 - 2
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)), nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3),
        nn.ReLU(), nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * pooled**2, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, classes),
    )  # fmt: skip


def dataset(x: np.ndarray, y: np.ndarray, user: int | None = None) -> Dataset:
    """Return samples as tensors, made once."""
    raw = [torch.tensor(x.reshape(len(x), -1), dtype=torch.float32), torch.tensor(y, dtype=torch.int64)]
    return Dataset(raw_data=raw, user_id=user)


def main() -> None:
    """Run the job."""
    stored, settings = np.load(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    np.random.seed(settings["seed"])  # noqa: NPY002  pfl draws from numpy's global generator
    network = Network(layers(settings["model"], stored["test_x"][0].size, settings["classes"]))
    torch.nn.utils.vector_to_parameters(torch.tensor(stored["initial"], dtype=torch.float32), network.parameters())
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    ends = stored["ends"].tolist()
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends)]  # noqa: B905  the last has no next
    users = {u: dataset(stored["x"][part], stored["y"][part], u) for u, part in enumerate(parts)}
    order = np.random.permutation(len(users)).tolist()  # noqa: NPY002  cohorts return in this order, as with us
    sampler = get_user_sampler("minimize_reuse", order)
    training = FederatedDataset(users.__getitem__, sampler)
    noise = [CentrallyAppliedPrivacyMechanism(GaussianMechanism(*settings["noise"]))] if settings["noise"] else []
    backend = SimulatedBackend(training, training, postprocessors=noise)
    clock, evaluated = RoundClock(), NNEvalHyperParams(local_batch_size=EVALUATED)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=settings["rounds"], evaluation_frequency=settings["rounds"],
            train_cohort_size=settings["per_round"], val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=settings["epochs"], local_learning_rate=settings["lr"],
            local_batch_size=settings["batch"] or None,
        ),
        evaluated,
        [CentralEvaluationCallback(dataset(stored["test_x"], stored["test_y"]), evaluated), clock],
        send_metrics_to_platform=False,
    )  # fmt: skip
    print(json.dumps({"times": clock.times, "spent": clock.spent, **clock.values}))


if __name__ == "__main__":
    assert Path(sys.argv[1]).is_file()
    main()
