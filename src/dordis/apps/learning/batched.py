"""Many small clients in one pass: each has its own copy of the parameters, and torch.func.vmap takes all steps at once.

A small model spends its time in calls, not in arithmetic: one call for a hundred clients takes as long as for one.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dordis.apps.learning import trainer
from dordis.apps.learning.losses import torch_losses
from dordis.apps.learning.models import Work
from dordis.apps.learning.pytorch import number_of, optimiser_of, seeded, threads
from dordis.apps.learning.trainer import Training
from dordis.privacy.skellam import Floats
from dordis.rounds.model import Numbers

if TYPE_CHECKING:
    from dordis.apps.learning.torch_model import TorchModel

LARGEST = 20_000
"""Parameters up to which a pass of many clients is faster than one client after the other."""
TOGETHER = 64
"""Clients of a pass: those with about as many samples, so that little is padded."""


def fit_batched(model: "TorchModel", start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
    """Return the updates of clients, in their order; None where a batch does not pay or cannot be made."""
    if len(works) < 2 or not all(len(work.samples[1]) for work in works):
        return None
    updates: dict[int, Floats] = {}
    order = sorted(range(len(works)), key=lambda i: len(works[i].samples[1]))
    for begin in range(0, len(order), TOGETHER):
        chosen = order[begin : begin + TOGETHER]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # torch warns where it takes clients one by one inside
                moved = BatchedPass(model, [works[i] for i in chosen], how).run(start)
        except (RuntimeError, UserWarning):  # a module that looks at values, or that vmap does not know
            return None
        updates |= zip(chosen, moved, strict=True)
    return [updates[i] for i in range(len(works))]


class BatchedPass:
    """Some clients that train at once; whoever has fewer steps or smaller batches is padded, at weight 0."""

    def __init__(self, model: "TorchModel", works: Sequence[Work], how: Training) -> None:
        self._model, self._how, self._torch = model, how, model._torch
        taken = [list(trainer.batches(len(work.samples[1]), how, work.seed)) for work in works]
        shape = len(works), max(map(len, taken)), max(batch.size for steps in taken for batch in steps)
        rows, there = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for i, steps in enumerate(taken):
            for step, batch in enumerate(steps):
                rows[i, step, : batch.size], there[i, step, : batch.size] = batch, 1
        self._rows, self._there = (self._torch.from_numpy(part) for part in (rows, there))
        self._x = self._padded([model._inputs(work.samples[0]) for work in works])
        self._y = self._padded([model._labels(work.samples[1]) for work in works])
        offsets = [trainer.label_offset(work.samples[1], work.classes, how.balance) for work in works]
        self._offset = model._parameters(np.stack(offsets))
        self._seed = works[0].seed

    def _padded(self, tensors: list[Any]) -> Any:
        return self._torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    def run(self, start: Numbers) -> list[Floats]:
        """Take all steps; return how far each client went until its last one."""
        torch, model, how, clients = self._torch, self._model, self._how, len(self._rows)
        begun = model._parameters(start)
        at = begun.expand(clients, -1).clone()
        held, moved = model._views(at), torch.zeros_like(at)
        optimiser, everyone = optimiser_of(at, how), torch.arange(clients)[:, None]
        slopes = torch.func.vmap(torch.func.grad(self._loss), randomness="different")
        model._module.train()
        with threads(model.threads), seeded(number_of(self._seed)):
            for step in range(self._rows.shape[1]):
                rows, there = self._rows[:, step], self._there[:, step].to(at.device)
                found = slopes(held, self._x[everyone, rows], self._y[everyone, rows], there, self._offset)
                at.grad = torch.cat([found[name].reshape(clients, -1) for name in held], dim=1)
                if how.proximal:
                    at.grad.add_(at - begun, alpha=how.proximal)
                optimiser.step()
                active = there.sum(1) > 0
                moved[active] = (at - begun)[active]
        updates: Floats = moved.cpu().numpy()
        trainer.check_converged(updates, how)
        return list(updates)

    def _loss(self, views: dict[str, Any], x: Any, y: Any, there: Any, offset: Any) -> Any:
        each, counts = torch_losses(self._model.target, self._model._call(views, x), y, offset)
        weights = counts * there.reshape(there.shape + (1,) * (counts.ndim - 1))
        return (each * weights).sum() / weights.sum().clamp(min=1)
