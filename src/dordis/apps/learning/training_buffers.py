"""Local training with torch: with large models clients train in threads, with small models many clients train at once.

A large model spends its time in torch's loops, which release Python's global lock, so threads train clients at the same
time.  For a small model, a call of torch for many clients takes about as long as a call for one client.  So each client
has its own copy of the parameters, and torch.func.vmap takes one training step of all clients in one call.  A client's
update does not depend on the thread that computes it.
"""

import copy
import sys
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dordis.apps.learning import trainer
from dordis.apps.learning.models import Work, torch_losses
from dordis.apps.learning.trainer import (
    Training,
    check_buffers,
    make_optimiser,
    seed_number,
    seed_torch,
    use_threads,
)
from dordis.privacy.scaling import Floats
from dordis.rounds.model import Numbers

if TYPE_CHECKING:
    from dordis.apps.learning.torch_model import TorchModel


class TrainingBuffers:
    """A copy of a model's torch module, in which clients train one after the other.

    All parameters are parts of one flat tensor, and all gradients are parts of a second one.  All clients use the
    same memory, because allocating memory takes longer than the step of a client with few samples.
    """

    def __init__(self, model: "TorchModel") -> None:
        torch = self._torch = model._torch
        self._model, self._module = model, copy.deepcopy(model._module).train()
        self._given = model._parameters(np.zeros(model.dim)).cpu()
        self._begun = self._given.to(model.device, copy=True)
        self._at, self._slope = self._begun.clone(), self._begun.clone()
        self._at.grad = self._slope
        views = zip(model._views(self._at).values(), model._views(self._slope).values(), strict=True)
        for parameter, (at, slope) in zip(model.trained_parameters(self._module), views, strict=True):
            parameter.data, parameter.grad = at, slope
            parameter.requires_grad_()
        self._generator = torch.Generator()
        if model.device.type == "cpu":
            for layer in self._module.modules():
                if type(layer) is torch.nn.Dropout and not layer.inplace:
                    layer.forward = partial(self._dropout, layer)

    def fit(self, start: Numbers, work: Work, how: Training) -> Floats:
        """Return the update of one client that trains from `start` with torch's own optimisers."""
        (x, y), model = work.samples, self._model
        self._generator.manual_seed(seed_number(work.seed))
        np.copyto(self._given.numpy(), start)
        self._begun.copy_(self._given)
        self._at.copy_(self._begun)
        offset = model._parameters(trainer.label_offset(y, work.classes, how))
        inputs, labels = model._inputs(x), model._labels(y)
        optimiser = make_optimiser(self._at, how)
        for batch in trainer.batches(len(y), how, work.seed):
            rows = self._torch.from_numpy(batch).to(inputs.device)
            self._slope.zero_()
            scores = model._class_scores(self._module(inputs[rows]))
            model._loss(scores, labels[rows], offset).backward()
            if how.proximal:
                self._slope.add_(self._at - self._begun, alpha=how.proximal)
            optimiser.step()
        check_buffers(self._module, model._buffers)
        update: Floats = (self._at - self._begun).cpu().numpy()
        trainer.check_converged(update, how)
        return update

    def _dropout(self, layer: Any, x: Any) -> Any:
        """Apply dropout to `x` with a generator of this object, because all threads share torch's global generator."""
        if not layer.p:
            return x
        return x * self._torch.empty_like(x).bernoulli_(1 - layer.p, generator=self._generator).div_(1 - layer.p)


def fit_in_threads(model: "TorchModel", start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
    """Train clients in threads; return their updates in order, the same as if the clients trained one after the other.

    Return None if threads would not be faster, or if a layer draws random numbers from torch's global generator, which
    threads share.
    """
    torch, workers = model._torch, min(model._torch.get_num_threads(), len(works))
    if workers < 2 or model.threads != 1 or model.device.type != "cpu" or model.draws_in_turn:
        return None
    free: SimpleQueue[TrainingBuffers] = SimpleQueue()
    for buffers in model.training_buffers(workers):
        free.put(buffers)

    def fit(work: Work) -> Floats:
        buffers = free.get()
        try:
            return buffers.fit(start, work, how)
        finally:
            free.put(buffers)

    before = torch.default_generator.get_state()
    with use_threads(1), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        updates = list(pool.map(fit, works))
    model.draws_in_turn = not torch.equal(before, torch.default_generator.get_state())
    if model.draws_in_turn:
        torch.default_generator.set_state(before)
        return None
    return updates


_UNUSED = 3
"""The reference count, inside the loop of `UpdateBuffers.take`, of an array to which only the pool refers."""


class UpdateBuffers:
    """A thread-safe pool of arrays; an array is reused when nothing outside the pool refers to it."""

    def __init__(self) -> None:
        self._arrays: list[Floats] = []
        self._lock = threading.Lock()

    def take(self, size: int, dtype: npt.DTypeLike) -> Floats:
        """Return an array of this size and type to which only the pool refers; its contents are arbitrary."""
        with self._lock:
            for array in self._arrays:
                if sys.getrefcount(array) == _UNUSED and array.size == size and array.dtype == dtype:
                    return array
            array = np.empty(size, dtype)
            self._arrays.append(array)
            return array


LARGEST = 20_000
"""Largest number of a model's parameters for which one pass for many clients is faster than a pass for each client."""
TOGETHER = 64
"""Largest number of clients in a batched pass."""


def fit_batched(model: "TorchModel", start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
    """Return the updates of clients in order, trained in batched passes of up to `TOGETHER` clients.

    Clients with similar numbers of samples share a pass, so that little padding is needed.  Return None if there are
    fewer than two clients, if one has no samples, or if the module does not support batched passes.
    """
    if len(works) < 2 or not all(len(work.samples[1]) for work in works):
        return None
    updates: dict[int, Floats] = {}
    order = sorted(range(len(works)), key=lambda i: len(works[i].samples[1]))
    for begin in range(0, len(order), TOGETHER):
        chosen = order[begin : begin + TOGETHER]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # torch warns if it computes clients one by one
                moved = BatchedPass(model, [works[i] for i in chosen], how).run(start)
        except (RuntimeError, UserWarning):  # the module branches on values, or vmap does not support it
            return None
        updates |= zip(chosen, moved, strict=True)
    return [updates[i] for i in range(len(works))]


class BatchedPass:
    """A batched pass: clients that train at once, each with its own copy of the parameters.

    Clients with fewer steps or smaller batches than others are padded with samples of weight 0.
    """

    def __init__(self, model: "TorchModel", works: Sequence[Work], how: Training) -> None:
        self._model, self._how, self._torch = model, how, model._torch
        taken = [list(trainer.batches(len(work.samples[1]), how, work.seed)) for work in works]
        shape = len(works), max(map(len, taken)), max(batch.size for steps in taken for batch in steps)
        rows, there = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for i, steps in enumerate(taken):
            for step, batch in enumerate(steps):
                rows[i, step, : batch.size], there[i, step, : batch.size] = batch, 1
        self._rows, self._there = (self._torch.from_numpy(part) for part in (rows, there))
        self._x = self._pad([model._inputs(work.samples[0]) for work in works])
        self._y = self._pad([model._labels(work.samples[1]) for work in works])
        offsets = [trainer.label_offset(work.samples[1], work.classes, how) for work in works]
        self._offset = model._parameters(np.stack(offsets))
        self._seed = works[0].seed

    def _pad(self, tensors: list[Any]) -> Any:
        return self._torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    def run(self, start: Numbers) -> list[Floats]:
        """Train all clients from `start`; return the update of each after its own last step."""
        torch, model, how, clients = self._torch, self._model, self._how, len(self._rows)
        begun = model._parameters(start)
        at = begun.expand(clients, -1).clone()
        held, moved = model._views(at), torch.zeros_like(at)
        optimiser, everyone = make_optimiser(at, how), torch.arange(clients)[:, None]
        slopes = torch.func.vmap(torch.func.grad(self._loss), randomness="different")
        model._module.train()
        with use_threads(model.threads), seed_torch(seed_number(self._seed)):
            for step in range(self._rows.shape[1]):
                rows, there = self._rows[:, step], self._there[:, step].to(at.device)
                found = slopes(held, self._x[everyone, rows], self._y[everyone, rows], there, self._offset)
                at.grad = torch.cat([found[name].reshape(clients, -1) for name in held], dim=1)
                if how.proximal:
                    at.grad.add_(at - begun, alpha=how.proximal)
                optimiser.step()
                active = there.sum(1) > 0
                moved[active] = (at - begun)[active]
        check_buffers(model._module, model._buffers)
        updates: Floats = moved.cpu().numpy()
        trainer.check_converged(updates, how)
        return list(updates)

    def _loss(self, views: dict[str, Any], x: Any, y: Any, there: Any, offset: Any) -> Any:
        each, counts = torch_losses(self._model.target, self._model._call(views, x), y, offset)
        weights = counts * there.reshape(there.shape + (1,) * (counts.ndim - 1))
        return (each * weights).sum() / weights.sum().clamp(min=1)
