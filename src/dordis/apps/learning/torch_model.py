"""Any torch.nn.Module as a model whose parameters are views of one flat vector.  Needs the extra 'torch'.

If each client takes a single step of training, all clients take it from the same parameters, the model of the round.
So one forward and one backward pass serve a group of clients; only the gradients of the weights are computed client by
client, from the inputs of a layer and the gradients at the layer's outputs.  Each client gets the update that it would
get if it trained alone, up to the order of floating-point additions.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dordis.apps.learning import trainer, training_buffers
from dordis.apps.learning.data import Labels, Target, Values
from dordis.apps.learning.models import Model, Totals, Work, metrics, torch_losses
from dordis.apps.learning.trainer import Training, find_device, import_torch, seed_number, seed_torch, use_threads
from dordis.apps.learning.training_buffers import TrainingBuffers, UpdateBuffers, fit_batched, fit_in_threads
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.rounds.model import Numbers

STATE_DICT = "model.pt"
SMALL = 2_000_000
"""Models with up to this number of parameters use one thread: their steps are too short to be divided among threads."""
EVALUATED = 64
"""Number of inputs that are evaluated at once; it is small, so that the layers' outputs fit in the cache."""


class TorchModel(Model):
    """A torch module that maps inputs (n, ..) to scores (n, classes), and whose parameters are the initial model.

    A module for two classes may have one output instead of two, the log odds of class 1: then the loss is logistic.
    For regression there is one score for each input; for next-token prediction the scores are (n, length, tokens).
    Modules with buffers of real numbers are refused: the running statistics of batch normalisation are not part of the
    update, so they would reveal one client's data to others without noise.  Layers that draw random numbers, such as
    dropout, draw them from a generator seeded for the client and the round.  In a batched pass (`fit_batched`) all
    clients share one generator, which is seeded for one of these clients and the round.
    """

    def __init__(self, module: Any, target: Target = "classification", device: str = "cpu") -> None:
        self._torch = import_torch()
        if not isinstance(module, self._torch.nn.Module):
            raise InputError(f"a torch model must be a torch.nn.Module, not {type(module).__name__}")
        if any(buffer.is_floating_point() for buffer in module.buffers()):
            raise InputError("the module has buffers, as batch normalisation does: use group normalisation instead")
        self.target = target
        self.device = find_device(device)
        self._module = module.to(self.device)
        self._named = {name: parameter.detach() for name, parameter in self._module.named_parameters()}
        if not self._named:
            raise InputError("the module has no parameters to train")
        self._training_buffers: list[TrainingBuffers] = []
        self.buffers = UpdateBuffers()
        self.architecture: Any = None
        """The settings of a network that dordis constructed (`networks.Architecture`); None for a user's module."""
        self.draws_in_turn = False
        """Whether a layer drew from torch's global generator, which threads share.  If so, threads are not used."""

    @cached_property
    def dim(self) -> int:
        """Return the number of parameters of the module."""
        return sum(tensor.numel() for tensor in self._named.values())

    @property
    def is_small(self) -> bool:
        """Tell whether the model has so few parameters that torch's calls take longer than the arithmetic."""
        return self.dim <= training_buffers.LARGEST

    @property
    def threads(self) -> int | None:
        """Return the number of threads for one operation: 1 for a model of up to `SMALL` parameters, else None, which
        leaves the choice to torch.
        """
        return 1 if self.dim <= SMALL else None

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return the parameters that the module had when it was wrapped."""
        flat = self._torch.cat([tensor.reshape(-1) for tensor in self._named.values()])
        return np.asarray(flat.cpu().numpy(), np.float64)

    def gradient(self, parameters: Floats, x: Values, y: Labels, offset: Floats) -> Floats:
        """Return the gradient of the mean loss on inputs `x`; `offset` is added to the scores of each input."""
        self._module.train()
        flat = self._parameters(parameters).requires_grad_()
        with use_threads(self.threads):
            scores = self._call(self._views(flat), self._inputs(x))
            loss = self._loss(scores, self._labels(y), self._parameters(offset))
            (slope,) = self._torch.autograd.grad(loss, flat)
        return np.asarray(slope.cpu().numpy(), np.float64)

    def fit(self, start: Numbers, work: Work, how: Training) -> Floats:
        """Return the update of one client, trained on the device with the batches that `trainer.train` would use."""
        with use_threads(self.threads), seed_torch(seed_number(work.seed)):
            return self.training_buffers(1)[0].fit(start, work, how)

    def fit_together(self, start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
        """Return the updates of many clients, or None if training one by one is as fast.

        With a small model, many clients train in one batched pass (`fit_batched`).  With a larger model, clients train
        in one pass if each client takes a single step (`fit_one_step`), and else in threads (`fit_in_threads`).
        """
        if self.is_small:
            return fit_batched(self, start, works, how)
        updates = fit_one_step(self, start, works, how)
        return fit_in_threads(self, start, works, how) if updates is None else updates

    def training_buffers(self, count: int) -> list[TrainingBuffers]:
        """Return one set of buffers for each of `count` threads; later calls return the same buffers."""
        self._training_buffers += [TrainingBuffers(self) for _ in range(count - len(self._training_buffers))]
        return self._training_buffers[:count]

    def scores(self, parameters: Floats, x: Values) -> Floats:
        """Return the module's output in evaluation mode."""
        self._module.eval()
        with self._torch.no_grad(), use_threads(self.threads):
            scores = self._call(self._views(self._parameters(parameters)), self._inputs(x))
        return np.asarray(scores.cpu().numpy(), np.float64)

    def evaluate(self, parameters: Floats, x: Values, y: Labels) -> dict[str, float]:
        """Return the metrics of the module on samples, computed batch by batch on the device."""
        torch, views = self._torch, self._views(self._parameters(parameters))
        views = channels_last(views) if has_known_layers(self._module) else views
        self._module.eval()
        sums = np.zeros(3)
        with torch.no_grad(), use_threads(1 if self.is_small else None):
            for begin in range(0, len(y), EVALUATED):
                labels = self._labels(y[begin : begin + EVALUATED])
                scores = self._call(views, self._inputs(x[begin : begin + EVALUATED]))
                each, there = torch_losses(self.target, scores, labels, 0)
                right = (scores.argmax(-1) == labels).sum() if self.target != "regression" else there.sum() * 0
                sums += [float((each * there).sum()), float(right), float(there.sum())]
        return metrics(self.target, Totals(*map(float, sums)))

    def check_outputs(self, x: Values, classes: int) -> None:
        """Raise InputError unless the module returns, for the inputs `x`, scores of the shape that the target needs."""
        self._module.eval()
        try:
            with self._torch.no_grad():
                views = self._views(self._parameters(self.initial(np.random.default_rng(0))))
                scores = self._torch.func.functional_call(self._module, views, (self._inputs(x),))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"the module cannot take inputs of shape {x.shape[1:]}: {said}") from None
        if not isinstance(scores, self._torch.Tensor):
            raise InputError(f"the module gives {type(scores).__name__}, not scores")
        shape, n = tuple(scores.shape), len(x)
        each = {"classification": (classes,), "regression": (1,), "next-token": (*x.shape[1:], classes)}[self.target]
        one = self.target == "regression" or (self.target == "classification" and classes == 2)
        if shape != (n, *each) and not (one and shape in ((n,), (n, 1))):
            or_one = f" or {(n, 1)}" if one and each != (1,) else ""
            raise InputError(
                f"the module gives scores of shape {shape} for {n} inputs: {self.target} needs {(n, *each)}{or_one}"
            )

    def trained(self, parameters: Floats) -> Any:
        """Return a copy of the module with these parameters."""
        module = copy.deepcopy(self._module)
        self._torch.nn.utils.vector_to_parameters(self._parameters(parameters), module.parameters())
        return module

    def save(self, parameters: Floats, directory: Path) -> None:
        """Write a plain state_dict, which `torch.load(path, weights_only=True)` reads."""
        self._torch.save(self.trained(parameters).state_dict(), directory / STATE_DICT)

    def _loss(self, scores: Any, y: Any, offset: Any) -> Any:
        """Return the mean loss over all samples (or tokens) that have a target."""
        each, there = torch_losses(self.target, scores, y, offset)
        return (each * there).sum() / there.sum().clamp(min=1)

    def _parameters(self, values: Numbers) -> Any:
        """Return numbers as a tensor of the module's number type, on its device."""
        like = next(iter(self._named.values()))
        return self._torch.tensor(values, dtype=like.dtype, device=like.device)

    def _inputs(self, x: Values) -> Any:
        """Return inputs as a tensor: numbers in the module's number type, tokens as whole numbers."""
        like = next(iter(self._named.values()))
        dtype = like.dtype if x.dtype.kind == "f" else self._torch.int64
        return self._torch.from_numpy(np.ascontiguousarray(x)).to(like.device, dtype)

    def _labels(self, y: Labels) -> Any:
        return self._inputs(y) if self.target == "regression" else self._inputs(y.astype(np.int64, copy=False))

    def _views(self, flat: Any) -> dict[str, Any]:
        """Return parts of a flat tensor by parameter name, shaped like the module's parameters.

        `flat` may also have several rows, one for each client.
        """
        ends = accumulate(tensor.numel() for tensor in self._named.values())
        return {
            name: flat[..., end - tensor.numel() : end].view(*flat.shape[:-1], *tensor.shape)
            for (name, tensor), end in zip(self._named.items(), ends, strict=True)
        }

    def _call(self, views: dict[str, Any], x: Any) -> Any:
        """Return the module's class scores with `views` in place of the module's own parameters."""
        return self._class_scores(self._torch.func.functional_call(self._module, views, (x,)))

    def _class_scores(self, scores: Any) -> Any:
        """Return one score for each class; a single output of the module is the score of class 1, and class 0 gets the
        score 0.
        """
        if self.target != "classification" or (scores.ndim == 2 and scores.shape[1] > 1):
            return scores
        return self._torch.nn.functional.pad(scores.reshape(-1, 1), (1, 0))


GROUP = 64
"""Number of samples in a pass: many, to reuse the weights in the cache; but not more samples than fit in the cache."""


class LayerPass(NamedTuple):
    """A layer with weights after a forward pass: its name, the layer, and its inputs and outputs for all samples."""

    name: str
    layer: Any
    inputs: Any
    outputs: Any


def fit_one_step(model: "TorchModel", start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
    """Return the updates of clients that take one step each, in order; None if a client takes several steps, or if the
    target, the device or a layer is not supported.
    """
    fits = model.target == "classification" and model.device.type == "cpu" and has_known_layers(model._module)
    if not fits or not is_one_step(works, how):
        return None
    begun = model._parameters(start)
    views = channels_last(model._views(begun))
    updates = [model.buffers.take(model.dim, begun.numpy().dtype) for _ in works]

    def fit(members: Sequence[int]) -> None:
        OneStep(model, [works[i] for i in members], how).run(views, [updates[i] for i in members])

    _each(fit, _groups(works), model._torch.get_num_threads())
    return updates


def is_one_step(works: Sequence[Work], how: Training) -> bool:
    """Tell whether every client takes exactly one step of SGD without weight decay."""
    sizes = [min(len(work.samples[1]), how.limit or len(work.samples[1])) for work in works]
    whole = all(0 < size <= (how.batch or size) for size in sizes)
    return how.method == "sgd" and how.epochs == 1 and not how.decay and whole


def has_known_layers(module: Any) -> bool:
    """Tell whether a module is a sequence of distinct supported layers, which treat every sample separately."""
    nn = import_torch().nn
    known = nn.Unflatten, nn.Flatten, nn.Identity, nn.ReLU, nn.MaxPool2d, nn.Dropout, nn.Linear, nn.Conv2d
    if type(module) is not nn.Sequential or not all(type(layer) in known for layer in module):
        return False
    parameters = [id(parameter) for layer in module for parameter in layer.parameters()]
    return len(set(parameters)) == len(parameters) and all(map(_is_plain, module))


def _is_plain(layer: Any) -> bool:
    """Tell whether a layer keeps the first axis (samples) and its input unchanged; convolutions must pad with zeros."""
    shaped = getattr(layer, "start_dim", 1) == 1 and getattr(layer, "dim", 1) == 1
    padding = getattr(layer, "padding_mode", "zeros") == "zeros" and not isinstance(getattr(layer, "padding", 0), str)
    return shaped and padding and not getattr(layer, "inplace", False)


def channels_last(views: dict[str, Any]) -> dict[str, Any]:
    """Return parameters, with the weights of convolutions in channels-last memory order, the fastest on CPUs."""
    return {name: _channels_last(view) if view.ndim == 4 else view for name, view in views.items()}


def _channels_last(weight: Any) -> Any:
    """Return a weight in channels-last memory order.

    The strides are set explicitly, because torch would not choose them for a weight with a single channel.
    """
    _, channels, height, width = weight.shape
    turned = weight.permute(0, 2, 3, 1).contiguous()
    return turned.as_strided(weight.shape, (height * width * channels, 1, width * channels, channels))


class OneStep:
    """A group of clients that take one step each, all in one forward and one backward pass."""

    def __init__(self, model: "TorchModel", works: Sequence[Work], how: Training) -> None:
        self._model, self._how, self._works, self._torch = model, how, works, model._torch
        rows = [next(trainer.batches(len(work.samples[1]), how, work.seed)) for work in works]
        samples = zip(works, rows, strict=True)
        taken = [(work.samples[0][chosen], work.samples[1][chosen]) for work, chosen in samples]
        self._sizes = [len(y) for _, y in taken]
        self._x = self._torch.cat([model._inputs(x) for x, _ in taken])
        self._y = self._torch.cat([model._labels(y) for _, y in taken])
        seeds = [seed_number(work.seed) for work in works]
        self._generators = [self._torch.Generator().manual_seed(seed) for seed in seeds]

    def run(self, views: dict[str, Any], updates: Sequence[Floats]) -> None:
        """Take every client's one training step from the parameters `views`; write each update into `updates`."""
        caught, scores = self._forward(views)
        slopes = self._torch.autograd.grad(self._loss(scores), [layer.outputs for layer in caught])
        written = [self._model._views(self._torch.from_numpy(update)) for update in updates]
        for layer, slope in zip(caught, slopes, strict=True):
            apart = zip(slope.split(self._sizes), layer.inputs.split(self._sizes), written, strict=True)
            for slope_of_one, inputs_of_one, own in apart:
                write_gradient(self._torch, layer, views, slope_of_one, inputs_of_one, own)
        for update in updates:
            trainer.check_converged(update, self._how)

    def _forward(self, views: dict[str, Any]) -> tuple[list[LayerPass], Any]:
        """Return the layers that have weights, with their inputs and outputs for the samples, and the class scores."""
        nn, x, caught = self._torch.nn, self._x, []
        for name, layer in self._model._module.named_children():
            if type(layer) is nn.Dropout:
                x = self._drop(x, layer.p)
                continue
            if type(layer) not in (nn.Linear, nn.Conv2d):
                x = layer(x)
                continue
            inputs, weight, bias = x.detach(), views[f"{name}.weight"], views.get(f"{name}.bias")
            if type(layer) is nn.Linear:
                x = nn.functional.linear(x, weight, bias)
            else:
                x = nn.functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
            x = x if x.requires_grad else x.requires_grad_()
            caught.append(LayerPass(name, layer, inputs, x))
        return caught, self._model._class_scores(x)

    def _drop(self, x: Any, rate: float) -> Any:
        """Apply dropout to the samples of each client with the client's own generator."""
        if not rate:
            return x
        drawn = zip(self._generators, self._sizes, strict=True)
        kept = [x.new_empty(size, *x.shape[1:]).bernoulli_(1 - rate, generator=own) for own, size in drawn]
        return x * self._torch.cat(kept).div_(1 - rate)

    def _loss(self, scores: Any) -> Any:
        """Return -lr times the sum, over the clients, of the mean loss of each client's samples.

        The gradient that one client's samples contribute is then the whole SGD step of this client, with factor -lr.
        """
        torch, model, sizes = self._torch, self._model, self._torch.tensor(self._sizes)
        offsets = [trainer.label_offset(work.samples[1], work.classes, self._how) for work in self._works]
        offset = torch.stack([model._parameters(offset) for offset in offsets]).repeat_interleave(sizes, 0)
        each, _ = torch_losses(model.target, scores, self._y, offset)
        return -self._how.lr * (each / sizes.repeat_interleave(sizes)).sum()


def write_gradient(
    torch: Any, caught: LayerPass, views: dict[str, Any], slope: Any, x: Any, update: dict[str, Any]
) -> None:
    """Write the gradient of one client, for weights and bias of one layer, into the client's update.

    `x` has the layer's inputs for the client's samples, and `slope` the gradients at the layer's outputs.
    """
    weight, bias, layer = f"{caught.name}.weight", f"{caught.name}.bias", caught.layer
    if type(layer) is torch.nn.Linear:
        torch.mm(slope.T, x, out=update[weight])
        if bias in update:
            torch.sum(slope, 0, out=update[bias])
        return
    _, found, found_bias = torch.ops.aten.convolution_backward(
        slope, x, views[weight], [layer.out_channels], layer.stride, layer.padding, layer.dilation, False, [0, 0],
        layer.groups, [False, True, bias in update],
    )  # fmt: skip
    update[weight].copy_(found)
    if bias in update:
        update[bias].copy_(found_bias)


def _groups(works: Sequence[Work]) -> list[list[int]]:
    """Divide the clients into groups of at most `GROUP` samples, or of one client; return the indices in each group."""
    groups: list[list[int]] = [[]]
    held = 0
    for place, work in enumerate(works):
        if groups[-1] and held + len(work.samples[1]) > GROUP:
            groups.append([])
            held = 0
        groups[-1].append(place)
        held += len(work.samples[1])
    return groups


def _each(fit: Callable[[Sequence[int]], None], groups: Sequence[Sequence[int]], workers: int) -> None:
    """Call `fit` once for each group of clients, in up to `workers` threads at the same time."""
    torch = import_torch()
    with use_threads(1):
        if min(workers, len(groups)) < 2:
            for group in groups:
                fit(group)
            return
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(fit, groups))
