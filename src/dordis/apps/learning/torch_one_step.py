"""Fast training of many clients that take one step each, with a large torch model that is a sequence of common layers.

All these clients take their single step from the same parameters, the model of the round.  So one forward and one
backward pass serve a group of clients; only the gradients of the weights are computed client by client, from the inputs
of a layer and the gradients at the layer's outputs.  Each client gets the update that it would get if it trained alone,
up to the order of floating-point additions.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from dordis.apps.learning import trainer
from dordis.apps.learning.models import Work, torch_losses
from dordis.apps.learning.trainer import Training, import_torch, seed_number, use_threads
from dordis.privacy.scaling import Floats
from dordis.rounds.model import Numbers

if TYPE_CHECKING:
    from dordis.apps.learning.torch_model import TorchModel

GROUP = 64
"""Largest number of samples in a pass: many, to reuse the weights in the cache, but not more than fit in the cache."""


class LayerPass(NamedTuple):
    """A layer with weights after a forward pass: its name, the layer, and its inputs and outputs for all samples."""

    name: str
    layer: Any
    inputs: Any
    outputs: Any


def fit_one_step(model: "TorchModel", start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
    """Return the updates of clients that take one step each, in order.

    Return None if a client does not take exactly one step of SGD without weight decay, if parameters are frozen, or if
    the target, the device or a layer is not supported.
    """
    known = has_known_layers(model._module) and not model.has_frozen
    if not known or model.target != "classification" or model.device.type != "cpu" or not is_one_step(works, how):
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
    """Tell whether a layer keeps axis 0, the samples, does not work in place, and pads with zeros, if at all.

    The width of the padding must be given in numbers, not as 'same' or 'valid'.
    """
    shaped = getattr(layer, "start_dim", 1) == 1 and getattr(layer, "dim", 1) == 1
    padding = getattr(layer, "padding_mode", "zeros") == "zeros" and not isinstance(getattr(layer, "padding", 0), str)
    return shaped and padding and not getattr(layer, "inplace", False)


def channels_last(views: dict[str, Any]) -> dict[str, Any]:
    """Return parameters by name, with weights of convolutions in channels-last memory order, the fastest on CPUs."""
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
        """Compute the one training step of every client from the parameters `views`; write it into `updates`."""
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
        """Return the inputs and outputs of all layers with weights, and the class scores, for the group's samples."""
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

        The part of its gradient that comes from one client's samples is then the SGD step of this client.
        """
        torch, model, sizes = self._torch, self._model, self._torch.tensor(self._sizes)
        offsets = [trainer.label_offset(work.samples[1], work.classes, self._how) for work in self._works]
        offset = torch.stack([model._parameters(offset) for offset in offsets]).repeat_interleave(sizes, 0)
        each, _ = torch_losses(model.target, scores, self._y, offset)
        return -self._how.lr * (each / sizes.repeat_interleave(sizes)).sum()


def write_gradient(
    torch: Any, caught: LayerPass, views: dict[str, Any], slope: Any, x: Any, update: dict[str, Any]
) -> None:
    """Write the SGD step of one client for the weights and bias of one layer into the client's update.

    `caught` is the layer, and `views` has the parameters of all layers.  `x` has the layer's inputs for the client's
    samples, and `slope` the gradients of the scaled loss at its outputs.  This loss has the factor -lr, so that its
    gradient is the step.
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
    """Return groups of client indices: at most `GROUP` samples in total, unless a group is a single client."""
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
