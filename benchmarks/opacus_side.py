"""DP-SGD by Opacus on pooled records, for `benchmarks.records`: `python opacus_side.py JOB`, JOB a file of numpy's.

It needs numpy, torch and opacus, and nothing of dordis.
"""

import json
import sys
import time

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import DPOptimizer
from opacus_model import mnist_cnn


def main() -> None:
    """Train on the pooled records, and print accuracy, noise multiplier and the processor time of a step."""
    with np.load(sys.argv[1]) as job:
        x, y = torch.tensor(job["x"]), torch.tensor(job["y"])
        tested, labels = torch.tensor(job["x_test"]), torch.tensor(job["y_test"])
        start, how = torch.tensor(job["start"]), json.loads(str(job["how"]))
    torch.set_num_threads(1)
    torch.manual_seed(how["seed"])
    classes = int(max(y.max(), labels.max())) + 1
    module = mnist_cnn() if how["model"] == "cnn" else torch.nn.Linear(x.shape[1], classes)
    torch.nn.utils.vector_to_parameters(start.float(), module.parameters())
    multiplier = how["multiplier"] or get_noise_multiplier(
        target_epsilon=how["epsilon"], target_delta=how["delta"], sample_rate=how["sampling"], steps=how["steps"],
        accountant="prv", epsilon_tolerance=0.01,
    )  # fmt: skip
    private = GradSampleModule(module)
    step = torch.optim.SGD(private.parameters(), how["lr"], how["momentum"])
    batch = how["sampling"] * len(y)
    noisy = DPOptimizer(step, noise_multiplier=multiplier, max_grad_norm=how["clip"], expected_batch_size=batch)
    spent = []
    for _ in range(how["steps"]):
        began = time.process_time()
        chosen = torch.rand(len(y)) < how["sampling"]
        noisy.zero_grad()
        if chosen.any():
            torch.nn.functional.cross_entropy(private(x[chosen]), y[chosen]).backward()
            noisy.step()
        spent.append(time.process_time() - began)
    with torch.no_grad():
        right = (torch.cat([private(part) for part in tested.split(1000)]).argmax(1) == labels).float().mean()
    print(json.dumps({"accuracy": float(right), "multiplier": multiplier, "step": float(np.median(spent))}))


if __name__ == "__main__":
    main()
