"""Local training on one client's samples in numpy, and functions that training with torch needs.

torch is imported only when it is used for the first time.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.learning.partitioned_data import Indices, Labels
from dordis.errors import Diverged, InputError, MissingExtra
from dordis.kernels.reals import is_finite
from dordis.privacy.scaling import Floats

if TYPE_CHECKING:
    from dordis.apps.learning.models import Model, Slope


BETA2, TINY = 0.999, 1e-8
"""Constants of AdamW: weight of the past in the second moment, and the term that avoids a division by zero."""

LARGEST_RATE = 1e4
"""Largest allowed learning rate.  A larger learning rate is a mistake, which the clipping of updates would hide."""
_SMOOTHING = 0.01
"""Number that is added to the count of every label, so that the logarithm of an absent label's frequency is finite."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of local training."""

    epochs: int = 5
    """Passes over the client's samples in a round."""
    batch: int = 0
    """Number of samples in a step; 0 is all."""
    lr: float = 4.0
    """Learning rate of the clients.  The default is at most 0.3 for `mlp` and torch models, 0.05 for regressions
    without a table, and 0.001 for `adamw`."""
    momentum: float = 0.0
    """Momentum of the clients; for `adamw`, the weight of the past in the first moment."""
    proximal: float = 0.0
    """mu of FedProx: the weight of a penalty on the distance from the model of the round."""
    balance: float = 0.5
    """Degree to which the loss is corrected for the client's own label frequencies, from 0 (not at all) to 1 (fully).

    With 1 a client learns what distinguishes its labels, and not how frequent each label is (Menon et al., "Long-tail
    learning via logit adjustment", 2021).
    """
    method: Literal["sgd", "adamw"] = "sgd"
    """Optimiser of the clients."""
    decay: float = 0.0
    """Weight decay of the clients' optimiser."""
    limit: int = 0
    """Largest number of samples that a client uses in a round, drawn anew in each round; 0 is all."""
    class_offset: tuple[float, ...] = ()
    """Numbers added to the scores in the loss, one for each class; the option `class_weights` sets them."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 0:
            raise InputError("training takes an epoch or more, and batches of a sample or more (0: all at once)")
        if not 0 < self.lr <= LARGEST_RATE or not 0 <= self.proximal < math.inf:
            raise InputError(
                f"lr must lie above 0 and be at most {LARGEST_RATE:g}, and proximal must be finite and 0 or more, "
                f"not {self.lr:g} and {self.proximal:g}"
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.balance <= 1:
            raise InputError("the momentum lies in 0..1, below 1, and the balance in 0..1")
        if not 0 <= self.decay < math.inf or self.limit < 0:
            raise InputError("the decay of weights is 0 or more, and so is the limit on samples (0: all)")

    def takes_all(self, samples: int) -> bool:
        """Tell whether a client with this number of samples uses all of them in every step."""
        return not 0 < self.batch < samples and not 0 < self.limit < samples


def train(
    model: "Model", start: Floats, x: Floats, y: Labels, classes: int, how: Training, seed: Sequence[int]
) -> Floats:
    """Return a client's update: the parameters after training minus `start`; zeros if the client has no samples.

    The order of samples comes from `seed`, which are non-negative integers; nothing else is random.
    """
    update, step = np.zeros(start.size), make_stepper(how)
    offset = label_offset(y, classes, how)
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is refused below
        for slope_at in slopes(model, x, y, offset, how, seed):
            slope = slope_at(start + update)
            if how.proximal:
                slope += how.proximal * update
            update += step(slope, start + update)
    check_converged(update, how)
    return update


def check_converged(update: Floats, how: Training) -> None:
    """Raise Diverged if an update is not finite, because training diverged."""
    if not is_finite(update):
        raise Diverged(f"training diverged at a learning rate of {how.lr:g}: pass a lower one")


def make_stepper(how: Training) -> Callable[[Floats, Floats], Floats]:
    """Return a function from the gradient and the parameters to the step of SGD with momentum, or of AdamW.

    The function keeps its momentum, or its moments, from call to call: make one for each training.
    """
    first: Floats | float = 0.0
    second: Floats | float = 0.0
    count = 0

    def sgd(slope: Floats, at: Floats) -> Floats:
        nonlocal first
        slope = slope + how.decay * at if how.decay else slope
        step: Floats = how.momentum * first + slope if how.momentum else slope
        first = step
        return -how.lr * step

    def adamw(slope: Floats, at: Floats) -> Floats:
        nonlocal first, second, count
        count += 1
        first = how.momentum * first + (1 - how.momentum) * slope
        second = BETA2 * second + (1 - BETA2) * slope**2
        scaled = first / (1 - how.momentum**count) / (np.sqrt(second / (1 - BETA2**count)) + TINY)
        step: Floats = -how.lr * (scaled + how.decay * at)
        return step

    return adamw if how.method == "adamw" else sgd


def slopes(
    model: "Model", x: Floats, y: Labels, offset: Floats, how: Training, seed: Sequence[int]
) -> "Iterator[Slope]":
    """Return an iterator that yields, for each step, the gradient on this step's samples as a function of parameters.

    `offset` is added to the class scores of each input in the loss (`label_offset`).  `seed` fixes the order of the
    samples (`batches`).  If all steps take all samples, the same function is yielded for every step.
    """
    if len(y) and how.takes_all(len(y)):
        return repeat(model.slope(x, y, offset), how.epochs)
    return (model.slope(x[batch], y[batch], offset) for batch in batches(len(y), how, seed))


def batches(samples: int, how: Training, seed: Sequence[int]) -> Iterator[Indices]:
    """Yield, for each step, the indices of the samples that it takes; `samples` is the number of all samples.

    An epoch takes every sample once; with `how.limit`, all epochs take only the same `how.limit` random samples.
    """
    if not samples:
        return
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(samples)[: how.limit] if 0 < how.limit < samples else np.arange(samples)
    size = how.batch or chosen.size
    for _ in range(how.epochs):
        yield from np.split(rng.permutation(chosen), range(size, chosen.size, size))


def label_offset(y: Labels, classes: int, how: Training) -> Floats:
    """Return an array with the number that is added to the score of each class in the loss.

    It is `class_offset` plus, in a classification, `balance` times the logarithm of the class's frequency in `y`.
    """
    offset: Floats = np.array(how.class_offset) if how.class_offset else np.zeros(classes)
    if not how.balance or y.ndim != 1 or y.dtype.kind not in "iu":
        return offset
    counts = np.bincount(y, minlength=classes) + _SMOOTHING
    offset += how.balance * np.log(counts / counts.sum())
    return offset


def import_torch() -> Any:
    """Return the module torch; raise `MissingExtra` if it is not installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra("torch") from error
    return torch


def check_module(module: Any) -> None:
    """Raise InputError unless `module` is a torch module that can be trained.

    The parameters to train must have values of one number type, float32 or float64.  No layer may keep running
    statistics.
    """
    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        said = f"the {'class' if isinstance(module, type) else 'function'} {getattr(module, '__name__', '')}"
        called = f"{said}: call it, and pass the module that it returns" if callable(module) else type(module).__name__
        raise InputError(f"a torch model must be a torch.nn.Module, not {called}")
    parameters = dict(module.named_parameters())
    if not parameters:
        raise InputError("the module has no parameters to train: assign its layers to attributes, not to a plain list")
    for name, part in (*parameters.items(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(part) or part.is_meta:
            raise InputError(f"'{name}' of the module has no values yet: call a lazy module once, with some inputs")
    types = {part.dtype for part in parameters.values() if part.requires_grad}
    if not types:
        raise InputError("all parameters of the module are frozen: set requires_grad_() on those to train")
    if len(types) > 1 or not types <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(str(one).removeprefix("torch.") for one in types))
        raise InputError(f"the parameters to train have the number type {found}: call module.float() before")
    module.train()  # a module of your own may keep some of its layers in evaluation mode
    for name, layer in module.named_modules():
        if layer.training and getattr(layer, "running_mean", None) is not None:
            raise InputError(
                f"the layer '{name or type(layer).__name__}' keeps running statistics of the clients' data in buffers, "
                "which no noise would protect: use group or layer normalisation instead"
            )


def check_buffers(module: Any, before: Mapping[str, Any]) -> None:
    """Raise InputError if training has changed a buffer of a module: its value differs from the one in `before`."""
    torch = import_torch()
    for name, buffer in module.named_buffers():
        same = name in before and (torch.equal(buffer, before[name]) or _equal_with_nan(buffer, before[name]))
        if not same:
            raise InputError(
                f"training changes the buffer '{name}' of the module, and no noise would protect what it holds: leave "
                "buffers unchanged in forward"
            )


def _equal_with_nan(one: Any, other: Any) -> bool:
    """Tell whether two tensors are equal, where NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def fixed_tensors(module: Any) -> dict[str, Any]:
    """Return the frozen parameters and the buffers of a torch module by name, without copying them."""
    torch, held = import_torch(), module.state_dict(keep_vars=True)
    return {
        name: part.detach() for name, part in held.items() if isinstance(part, torch.Tensor) and not part.requires_grad
    }


def first_line(error: Any) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return `values` as a numpy array; they may be any torch tensor, such as one on a graphics processor.

    Raise InputError if they cannot be converted to an array; `name` names the values in the error.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        held = values.detach().to_dense().cpu() if values.is_sparse else values.detach().cpu()
        return np.asarray(held.float() if held.dtype == torch.bfloat16 else held)
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not an array of numbers: {first_line(error)}") from None


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Seed torch's global random generator inside the block, if torch is imported; afterwards restore its state."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    # Without a graphics processor only the CPU's generator is seeded, which takes a tenth of the time.
    begin = torch.manual_seed if accelerator(torch) else torch.default_generator.manual_seed
    with torch.random.fork_rng(devices=[]):
        begin(seed)
        yield


def accelerator(torch: Any) -> str:
    """Return the device name of a graphics processor, or an empty string if there is none."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else ""


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Let each torch operation inside the block use `count` threads; with None, as many as outside."""
    torch = import_torch()
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def find_device(name: str) -> Any:
    """Return torch's device with this name; "auto" is the graphics processor, or the CPU if there is none.

    Raise InputError if there is no such device.
    """
    torch = import_torch()
    if name == "auto":
        name = accelerator(torch) or "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"there is no device '{name}': pass auto or cpu ({str(error).splitlines()[0]})") from None


def make_optimiser(tensor: Any, how: Training) -> Any:
    """Return torch's optimiser SGD or AdamW for the parameters `tensor`, with the options `how`."""
    optim = import_torch().optim
    if how.method == "adamw":
        betas = (how.momentum, BETA2)
        return optim.AdamW([tensor], how.lr, betas, TINY, weight_decay=how.decay)
    return optim.SGD([tensor], how.lr, how.momentum, weight_decay=how.decay)


def seed_number(seed: Sequence[int]) -> int:
    """Return one number that is derived from the numbers of `seed`, because torch takes a single number as seed."""
    return int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0])
