"""Any torch.nn.Module as a model: its parameters are views of one flat vector.  Needs the extra 'torch'."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dordis.apps.learning.data import Labels
from dordis.apps.learning.models import Model
from dordis.errors import InputError, MissingExtra
from dordis.privacy.skellam import Floats

STATE_DICT = "model.pt"


def _torch() -> Any:
    """Import torch when it is first needed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra("torch") from error
    return torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have torch, if it is imported, draw initial parameters from a seed, and go on as before afterwards."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class TorchModel(Model):
    """Wrap a module that takes inputs (n, features) to scores (n, classes); it begins with the module's parameters.

    Modules with buffers are refused: the running statistics of batch normalisation are not in the update, so they
    would tell of one client's data to others, with no noise on them.  Layers that draw at random, such as dropout, use
    torch's own generator.
    """

    def __init__(self, module: Any) -> None:
        self._torch = _torch()
        if not isinstance(module, self._torch.nn.Module):
            raise InputError(f"a torch model is made of a torch.nn.Module, not of {type(module).__name__}")
        if any(True for _ in module.buffers()):
            raise InputError("the module has buffers, as batch normalisation does: use group normalisation instead")
        self._module = module
        self._named = {name: parameter.detach() for name, parameter in module.named_parameters()}
        if not self._named:
            raise InputError("the module has no parameters to train")

    @cached_property
    def dim(self) -> int:
        """Return how many parameters the module has."""
        return sum(tensor.numel() for tensor in self._named.values())

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return the parameters that the module was made with."""
        flat = self._torch.cat([tensor.reshape(-1) for tensor in self._named.values()])
        return np.asarray(flat.cpu().numpy(), np.float64)

    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Differentiate the mean cross entropy."""
        torch = self._torch
        self._module.train()
        flat = self._tensor(parameters).requires_grad_()
        scores = self._call(flat, x) + self._tensor(offset)
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(np.ascontiguousarray(y)).to(flat.device))
        (slope,) = torch.autograd.grad(loss, flat)
        return np.asarray(slope.cpu().numpy(), np.float64)

    def scores(self, parameters: Floats, x: Floats) -> Floats:
        """Call the module, in its mode for evaluation."""
        self._module.eval()
        with self._torch.no_grad():
            scores = self._call(self._tensor(parameters), x)
        return np.asarray(scores.cpu().numpy(), np.float64)

    def trained(self, parameters: Floats) -> Any:
        """Return a copy of the module with these parameters."""
        module = copy.deepcopy(self._module)
        self._torch.nn.utils.vector_to_parameters(self._tensor(parameters), module.parameters())
        return module

    def save(self, parameters: Floats, directory: Path) -> None:
        """Write a plain state_dict, which `torch.load(path, weights_only=True)` reads."""
        self._torch.save(self.trained(parameters).state_dict(), directory / STATE_DICT)

    def _tensor(self, values: Floats) -> Any:
        like = next(iter(self._named.values()))
        return self._torch.tensor(values, dtype=like.dtype, device=like.device)

    def _call(self, flat: Any, x: Floats) -> Any:
        """Call the module with its parameters replaced by parts of a flat tensor, shaped like them."""
        ends = accumulate(tensor.numel() for tensor in self._named.values())
        views = {
            name: flat[end - tensor.numel() : end].view(tensor.shape)
            for (name, tensor), end in zip(self._named.items(), ends, strict=True)
        }
        return self._torch.func.functional_call(self._module, views, (self._tensor(x),))
