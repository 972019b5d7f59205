"""Any torch.nn.Module as a model: its parameters are views of one flat vector.  Needs the extra 'torch'."""

import copy
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dordis.apps.learning import batched, losses
from dordis.apps.learning.buffers import UpdateBuffers
from dordis.apps.learning.data import Labels, Target, Values
from dordis.apps.learning.desk import Desk, fit_in_threads
from dordis.apps.learning.losses import Totals, torch_losses
from dordis.apps.learning.models import Model, Work
from dordis.apps.learning.one_step import channels_last, fit_one_step, has_known_layers
from dordis.apps.learning.pytorch import device_named, import_torch, number_of, seeded, threads
from dordis.apps.learning.trainer import Training
from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.rounds.model import Numbers

STATE_DICT = "model.pt"
SMALL = 2_000_000
"""Parameters up to which a step is too short to be divided among threads."""
EVALUATED = 256
"""Inputs that are evaluated at once."""


class TorchModel(Model):
    """Wrap a module that takes inputs (n, ..) to scores (n, classes); it begins with the module's parameters.

    A module for two classes may have one output instead, the log odds of class 1: then the loss is logistic.  For
    regression the scores are one number each, for the next token (n, length, tokens).  Modules with buffers of
    real numbers are refused: the running statistics of batch normalisation are not in the update, so they would tell
    of one client's data to others, with no noise on them.  Layers that draw at random, such as dropout, draw from the
    seed of the client and the round.
    """

    def __init__(self, module: Any, target: Target = "classification", device: str = "cpu") -> None:
        self._torch = import_torch()
        if not isinstance(module, self._torch.nn.Module):
            raise InputError(f"a torch model is made of a torch.nn.Module, not of {type(module).__name__}")
        if any(buffer.is_floating_point() for buffer in module.buffers()):
            raise InputError("the module has buffers, as batch normalisation does: use group normalisation instead")
        self.target = target
        self.device = device_named(device)
        self._module = module.to(self.device)
        self._named = {name: parameter.detach() for name, parameter in self._module.named_parameters()}
        if not self._named:
            raise InputError("the module has no parameters to train")
        self._desks: list[Desk] = []
        self.buffers = UpdateBuffers()
        self.draws_in_turn = False
        """Whether a layer was seen to draw from torch's own generator."""

    @cached_property
    def dim(self) -> int:
        """Return how many parameters the module has."""
        return sum(tensor.numel() for tensor in self._named.values())

    @property
    def is_small(self) -> bool:
        """Say whether a step takes longer to be called than to be computed, also for hundreds of samples at once."""
        return self.dim <= batched.LARGEST

    @property
    def threads(self) -> int | None:
        """Return the number of threads for one operation: one where the model is small, or torch's own choice."""
        return 1 if self.dim <= SMALL else None

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return the parameters that the module was made with."""
        flat = self._torch.cat([tensor.reshape(-1) for tensor in self._named.values()])
        return np.asarray(flat.cpu().numpy(), np.float64)

    def gradient(self, parameters: Floats, x: Values, y: Labels, offset: Floats) -> Floats:
        """Differentiate the mean loss."""
        self._module.train()
        flat = self._parameters(parameters).requires_grad_()
        with threads(self.threads):
            scores = self._call(self._views(flat), self._inputs(x))
            loss = self._loss(scores, self._labels(y), self._parameters(offset))
            (slope,) = self._torch.autograd.grad(loss, flat)
        return np.asarray(slope.cpu().numpy(), np.float64)

    def fit(self, start: Numbers, work: Work, how: Training) -> Floats:
        """Train on the device; every step takes the samples that others would take."""
        with threads(self.threads), seeded(number_of(work.seed)):
            return self.desks(1)[0].fit(start, work, how)

    def fit_together(self, start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
        """Train small models of many clients in one batched pass, larger ones in threads; None if neither pays.

        Clients of larger ones that take a single step take it together.
        """
        if self.is_small:
            return batched.fit_batched(self, start, works, how)
        updates = fit_one_step(self, start, works, how)
        return fit_in_threads(self, start, works, how) if updates is None else updates

    def desks(self, count: int) -> list[Desk]:
        """Return places where so many clients can train at once; they are kept."""
        self._desks += [Desk(self) for _ in range(count - len(self._desks))]
        return self._desks[:count]

    def scores(self, parameters: Floats, x: Values) -> Floats:
        """Call the module, in its mode for evaluation."""
        self._module.eval()
        with self._torch.no_grad(), threads(self.threads):
            scores = self._call(self._views(self._parameters(parameters)), self._inputs(x))
        return np.asarray(scores.cpu().numpy(), np.float64)

    def evaluate(self, parameters: Floats, x: Values, y: Labels) -> dict[str, float]:
        """Return what is told of the model, evaluated piece by piece on the device."""
        torch, views = self._torch, self._views(self._parameters(parameters))
        views = channels_last(views) if has_known_layers(self._module) else views
        self._module.eval()
        sums = np.zeros(3)
        with torch.no_grad(), threads(1 if self.is_small else None):
            for begin in range(0, len(y), EVALUATED):
                labels = self._labels(y[begin : begin + EVALUATED])
                scores = self._call(views, self._inputs(x[begin : begin + EVALUATED]))
                each, there = torch_losses(self.target, scores, labels, 0)
                right = (scores.argmax(-1) == labels).sum() if self.target != "regression" else there.sum() * 0
                sums += [float((each * there).sum()), float(right), float(there.sum())]
        return losses.metrics(self.target, Totals(*map(float, sums)))

    def check_outputs(self, x: Values, classes: int) -> None:
        """The module takes inputs of the data to as many scores as the target needs, or it is refused."""
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
        each, there = torch_losses(self.target, scores, y, offset)
        return (each * there).sum() / there.sum().clamp(min=1)

    def _parameters(self, values: Numbers) -> Any:
        """Return numbers as a tensor like the module's parameters."""
        like = next(iter(self._named.values()))
        return self._torch.tensor(values, dtype=like.dtype, device=like.device)

    def _inputs(self, x: Values) -> Any:
        """Return inputs as a tensor: numbers like the parameters, tokens as whole numbers."""
        like = next(iter(self._named.values()))
        dtype = like.dtype if x.dtype.kind == "f" else self._torch.int64
        return self._torch.from_numpy(np.ascontiguousarray(x)).to(like.device, dtype)

    def _labels(self, y: Labels) -> Any:
        return self._inputs(y) if self.target == "regression" else self._inputs(y.astype(np.int64, copy=False))

    def _views(self, flat: Any) -> dict[str, Any]:
        """Return parts of a flat tensor, or of each of its rows, shaped like the parameters."""
        ends = accumulate(tensor.numel() for tensor in self._named.values())
        return {
            name: flat[..., end - tensor.numel() : end].view(*flat.shape[:-1], *tensor.shape)
            for (name, tensor), end in zip(self._named.items(), ends, strict=True)
        }

    def _call(self, views: dict[str, Any], x: Any) -> Any:
        """Call the module with its parameters replaced."""
        return self._of_classes(self._torch.func.functional_call(self._module, views, (x,)))

    def _of_classes(self, scores: Any) -> Any:
        """Return scores as there are classes: one output for two of them is the score of the second."""
        if self.target != "classification" or (scores.ndim == 2 and scores.shape[1] > 1):
            return scores
        return self._torch.nn.functional.pad(scores.reshape(-1, 1), (1, 0))
