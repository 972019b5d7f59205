"""Where clients train with torch: in memory that is taken once, one after the other or a few at a time in threads.

A model that is too large for `dordis.apps.learning.batched` spends its time in torch's own loops, which leave Python to
other threads.  Every thread has a desk of its own, and what a client gets does not depend on the desk, or on who trains
beside it.
"""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from dordis.apps.learning import trainer
from dordis.apps.learning.models import Work
from dordis.apps.learning.pytorch import number_of, optimiser_of, threads
from dordis.apps.learning.trainer import Training
from dordis.privacy.skellam import Floats
from dordis.rounds.model import Numbers

if TYPE_CHECKING:
    from dordis.apps.learning.torch_model import TorchModel


class Desk:
    """A copy of the module whose parameters and slopes are parts of two flat tensors, for one client at a time.

    Memory that is new costs more than the step of a small client in it.
    """

    def __init__(self, model: "TorchModel") -> None:
        torch = self._torch = model._torch
        self._model, self._module = model, copy.deepcopy(model._module).train()
        self._given = model._parameters(np.zeros(model.dim)).cpu()
        self._begun = self._given.to(model.device, copy=True)
        self._at, self._slope = self._begun.clone(), self._begun.clone()
        self._at.grad = self._slope
        views = zip(model._views(self._at).values(), model._views(self._slope).values(), strict=True)
        for parameter, (at, slope) in zip(self._module.parameters(), views, strict=True):
            parameter.data, parameter.grad = at, slope
            parameter.requires_grad_()
        self._generator = torch.Generator()
        if model.device.type == "cpu":
            for layer in self._module.modules():
                if type(layer) is torch.nn.Dropout and not layer.inplace:
                    layer.forward = partial(self._dropout, layer)

    def fit(self, start: Numbers, work: Work, how: Training) -> Floats:
        """Return how far the training of one client goes from `start`, by torch's own optimisers."""
        (x, y), model = work.samples, self._model
        self._generator.manual_seed(number_of(work.seed))
        np.copyto(self._given.numpy(), start)
        self._begun.copy_(self._given)
        self._at.copy_(self._begun)
        offset = model._parameters(trainer.label_offset(y, work.classes, how.balance))
        inputs, labels = model._inputs(x), model._labels(y)
        optimiser = optimiser_of(self._at, how)
        for batch in trainer.batches(len(y), how, work.seed):
            rows = self._torch.from_numpy(batch).to(inputs.device)
            self._slope.zero_()
            scores = model._of_classes(self._module(inputs[rows]))
            model._loss(scores, labels[rows], offset).backward()
            if how.proximal:
                self._slope.add_(self._at - self._begun, alpha=how.proximal)
            optimiser.step()
        update: Floats = (self._at - self._begun).cpu().numpy()
        trainer.check_converged(update, how)
        return update

    def _dropout(self, layer: Any, x: Any) -> Any:
        """Do what the layer does, by draws of this desk: torch's own generator is one for all threads."""
        if not layer.p:
            return x
        return x * self._torch.empty_like(x).bernoulli_(1 - layer.p, generator=self._generator).div_(1 - layer.p)


def fit_in_threads(model: "TorchModel", start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
    """Return the updates of clients, in their order, as each gets them alone.

    None where threads do not pay, and where a layer drew from torch's own generator, which threads would share.
    """
    torch, workers = model._torch, min(model._torch.get_num_threads(), len(works))
    if workers < 2 or model.threads != 1 or model.device.type != "cpu" or model.draws_in_turn:
        return None
    free: SimpleQueue[Desk] = SimpleQueue()
    for desk in model.desks(workers):
        free.put(desk)

    def fit(work: Work) -> Floats:
        desk = free.get()
        try:
            return desk.fit(start, work, how)
        finally:
            free.put(desk)

    before = torch.default_generator.get_state()
    with threads(1), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        updates = list(pool.map(fit, works))
    model.draws_in_turn = not torch.equal(before, torch.default_generator.get_state())
    if model.draws_in_turn:
        torch.default_generator.set_state(before)
        return None
    return updates
