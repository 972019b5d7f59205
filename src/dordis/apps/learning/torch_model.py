"""Any torch.nn.Module as a model whose parameters are views of one flat vector.  Needs the extra 'torch'."""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.learning import training_buffers
from dordis.apps.learning.models import Model, Totals, Work, metrics, torch_losses
from dordis.apps.learning.partitioned_data import Labels, Target, Values
from dordis.apps.learning.torch_one_step import channels_last, fit_one_step, has_known_layers
from dordis.apps.learning.trainer import (
    Training,
    as_array,
    check_buffers,
    check_module,
    find_device,
    first_line,
    fixed_tensors,
    import_torch,
    seed_number,
    seed_torch,
    use_threads,
)
from dordis.apps.learning.training_buffers import TrainingBuffers, UpdateBuffers, fit_batched, fit_in_threads
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.rounds.model import Numbers

STATE_DICT = "model.pt"
SMALL = 2_000_000
"""Models with up to this number of parameters use one thread: their steps are too short to be divided among threads."""
EVALUATED = 64
"""Number of inputs that are evaluated at once; it is small, so that the layers' outputs fit in the cache."""

REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What a module may raise for inputs that it cannot take."""


class TorchModel(Model):
    """A torch module that maps inputs (n, ..) to scores (n, classes); its own parameters are the initial ones.

    A module for two classes may have one output instead of two, the log odds of class 1: then the loss is logistic.
    For regression there is one score for each number to predict; for next-token prediction the scores have the shape
    (n, length, tokens).  Parameters with `requires_grad` False are frozen: they and the buffers keep their values and
    are in no update.  A module that changes its buffers in training is refused: the running statistics of batch
    normalisation would reveal one client's data to others without noise.  Inputs that are whole numbers, such as
    tokens, are passed as int64 if the module accepts int64, else in the number type of its parameters.  Layers that
    draw random numbers, such as dropout, draw them from a generator seeded for the client and the round.  In a batched
    pass (`fit_batched`) all clients share one generator, which is seeded for one of these clients and the round.
    """

    def __init__(self, module: Any, target: Target = "classification", device: str = "cpu") -> None:
        self._torch = import_torch()
        check_module(module)
        self.target = target
        self.device = find_device(device)
        self._module = module.to(self.device)
        self._named = {name: part.detach() for name, part in self._module.named_parameters() if part.requires_grad}
        self._fixed = frozenset(fixed_tensors(self._module))
        self.has_frozen = not all(part.requires_grad for part in self._module.parameters())
        """Whether a parameter is frozen."""
        self._buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        self._takes_integers: bool | None = None
        self._training_buffers: list[TrainingBuffers] = []
        self.buffers = UpdateBuffers()
        self.architecture: Any = None
        """The settings of a network that dordis constructed (`networks.Architecture`); None for a user's module."""
        self.draws_in_turn = False
        """Whether a layer drew random numbers from torch's global generator; then clients do not train in threads."""

    @cached_property
    def dim(self) -> int:
        """Return the number of all values in the parameters of the module that are not frozen."""
        return sum(tensor.numel() for tensor in self._named.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters that are not frozen, by name."""
        return {name: tuple(tensor.shape) for name, tensor in self._named.items()}

    @property
    def is_small(self) -> bool:
        """Tell whether the model has so few parameters that many clients train fastest in one batched pass."""
        return self.dim <= training_buffers.LARGEST

    @property
    def threads(self) -> int | None:
        """Return the threads of a torch operation: 1 for up to `SMALL` parameters, else None, so that torch decides."""
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
        """Return the update of one client that trains from `start`; the batches are the same as in `trainer.train`."""
        with use_threads(self.threads), seed_torch(seed_number(work.seed)):
            return self.training_buffers(1)[0].fit(start, work, how)

    def fit_together(self, start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
        """Return the updates of many clients, or None if `fit` should train each client alone.

        With a small model (`is_small`), they train in batched passes (`fit_batched`).  With a larger model, clients
        train in one pass if each client takes a single step (`fit_one_step`), and else in threads (`fit_in_threads`).
        """
        if self.is_small:
            return fit_batched(self, start, works, how)
        updates = fit_one_step(self, start, works, how)
        return fit_in_threads(self, start, works, how) if updates is None else updates

    def training_buffers(self, count: int) -> list[TrainingBuffers]:
        """Return `count` objects in which clients train, one for each thread; later calls return the same objects."""
        self._training_buffers += [TrainingBuffers(self) for _ in range(count - len(self._training_buffers))]
        return self._training_buffers[:count]

    def scores(self, parameters: Floats, x: Values) -> Floats:
        """Return the module's scores for inputs `x` with these parameters, in evaluation mode."""
        self._module.eval()
        with self._torch.no_grad(), use_threads(self.threads):
            scores = self._call(self._views(self._parameters(parameters)), self._inputs(x))
        return np.asarray(scores.cpu().numpy(), np.float64)

    def evaluate(self, parameters: Floats, x: Values, y: Labels) -> dict[str, float]:
        """Return the metrics of the module with these parameters on samples, `EVALUATED` samples at a time."""
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
        """Raise InputError unless the module returns scores of the shape that the target needs for the inputs `x`.

        Raise InputError also if the module changes its buffers in training.
        """
        scores = self._try(self._inputs(x))
        if isinstance(scores, Exception):
            said = f"the module cannot take inputs of shape {x.shape[1:]}: {first_line(scores)}"
            whole = self._try(self._tensor(x, self._torch.int64)) if x.dtype.kind in "iu" else None
            if isinstance(whole, Exception) and not self._takes_integers:
                said += f"; as whole numbers: {first_line(whole)}"
            raise InputError(said)
        if not isinstance(scores, self._torch.Tensor):
            raise InputError(
                f"the module gives {type(scores).__name__}, not scores: wrap it in a module whose forward returns only "
                "the tensor of scores"
            )
        if self._buffers:
            probe = copy.deepcopy(self._module).train()
            try:
                with self._torch.no_grad(), seed_torch(0):
                    probe(self._inputs(x))
            except REFUSALS as error:
                raise InputError(f"in training the module cannot take {len(x)} inputs: {first_line(error)}") from error
            check_buffers(probe, self._buffers)
        shape, n = tuple(scores.shape), len(x)
        each = {"classification": (classes,), "regression": (classes,), "next-token": (*x.shape[1:], classes)}[
            self.target
        ]
        one = classes == {"regression": 1, "classification": 2}.get(self.target)
        if shape != (n, *each) and not (one and shape in ((n,), (n, 1))):
            or_one = f" or {(n, 1)}" if one and each != (1,) else ""
            raise InputError(
                f"the module gives scores of shape {shape} for {n} inputs: {self.target} needs {(n, *each)}{or_one}"
            )

    def trained(self, parameters: Floats) -> Any:
        """Return a copy of the module with these parameters."""
        module = copy.deepcopy(self._module)
        self._torch.nn.utils.vector_to_parameters(self._parameters(parameters), self.trained_parameters(module))
        return module

    def trained_parameters(self, module: Any) -> list[Any]:
        """Return the parameters that are not frozen of `module`, a copy of this model's module.

        They are found by name: if the copy was made while another thread evaluated, all its parameters look frozen.
        """
        return [parameter for name, parameter in module.named_parameters() if name in self._named]

    def fixed(self) -> dict[str, npt.NDArray[Any]]:
        """Return frozen parameters and buffers by name."""
        return {name: as_array(name, part) for name, part in self._module.state_dict().items() if name in self._fixed}

    def restore_fixed(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set frozen parameters and buffers to `values`; raise InputError if names or shapes are not the module's."""
        own = {name: part for name, part in self._module.state_dict().items() if name in self._fixed}
        stored = {name: self._torch.from_numpy(np.array(value)) for name, value in values.items()}
        if {name: part.shape for name, part in own.items()} != {name: part.shape for name, part in stored.items()}:
            raise InputError(
                f"the stored model has the frozen parameters and buffers {sorted(stored)}, this module {sorted(own)}: "
                "pass the module that was trained, with the same parameters frozen"
            )
        for name, part in own.items():
            part.copy_(stored[name])
        self._buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}

    def restore_saved(self, directory: Path) -> None:
        """Set frozen parameters and buffers to those in the directory of a run, if `save` wrote them there."""
        if self._fixed and (directory / STATE_DICT).is_file():
            saved = self._torch.load(directory / STATE_DICT, map_location="cpu", weights_only=True)
            self.restore_fixed({name: as_array(name, saved[name]) for name in self._fixed & saved.keys()})

    def save(self, parameters: Floats, directory: Path) -> None:
        """Write the trained module's state_dict to `STATE_DICT`, which `torch.load(path, weights_only=True)` reads."""
        self._torch.save(self.trained(parameters).state_dict(), directory / STATE_DICT)

    def _loss(self, scores: Any, y: Any, offset: Any) -> Any:
        """Return the mean loss over all samples (or tokens) with a target; `offset` is added to the class scores."""
        each, there = torch_losses(self.target, scores, y, offset)
        return (each * there).sum() / there.sum().clamp(min=1)

    def _parameters(self, values: Numbers) -> Any:
        """Return numbers as a tensor of the module's number type, on its device."""
        like = next(iter(self._named.values()))
        return self._torch.tensor(values, dtype=like.dtype, device=like.device)

    def _inputs(self, x: Values) -> Any:
        """Return inputs as a tensor: int64 for whole numbers if the module accepts int64, else its number type."""
        if x.dtype.kind in "iu" and self._takes_integers is None:
            likes = (np.full((1, *x.shape[1:]), token) for token in (0, 1))  # the same for all data; 0 may be padding
            tried = (self._try(self._tensor(tokens, self._torch.int64)) for tokens in likes)
            self._takes_integers = any(not isinstance(scores, Exception) for scores in tried)
        return self._tensor(x, self._torch.int64 if x.dtype.kind in "iu" and self._takes_integers else None)

    def _labels(self, y: Labels) -> Any:
        return self._tensor(y, None if self.target == "regression" else self._torch.int64)

    def _tensor(self, values: Values, dtype: Any) -> Any:
        """Return an array as a tensor on the module's device, by default in the module's number type."""
        like = next(iter(self._named.values()))
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(like.device, dtype or like.dtype)

    def _try(self, x: Any) -> Any:
        """Return what the module returns in evaluation mode for a tensor, or the error that it raises."""
        mode = self._module.training
        try:
            with self._torch.no_grad():
                return self._torch.func.functional_call(self._module.eval(), self._named, (x,))
        except REFUSALS as error:
            return error
        finally:
            self._module.train(mode)

    def _views(self, flat: Any) -> dict[str, Any]:
        """Return parts of a flat tensor by parameter name, shaped like the module's parameters.

        `flat` may also have several rows, one for each client.
        """
        ends = accumulate(tensor.numel() for tensor in self._named.values())
        return {
            name: flat[..., end - tensor.numel() : end].view((*flat.shape[:-1], *tensor.shape))
            for (name, tensor), end in zip(self._named.items(), ends, strict=True)
        }

    def _call(self, views: dict[str, Any], x: Any) -> Any:
        """Return the module's class scores with `views` in place of the module's own parameters."""
        return self._class_scores(self._torch.func.functional_call(self._module, views, (x,)))

    def _class_scores(self, scores: Any) -> Any:
        """Return one score for each class from the module's output.

        If the module has a single output, it is the score of class 1, and class 0 gets the score 0.
        """
        if self.target != "classification" or (scores.ndim == 2 and scores.shape[1] > 1):
            return scores
        return self._torch.nn.functional.pad(scores.reshape(-1, 1), (1, 0))
