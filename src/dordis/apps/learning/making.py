"""Models by their names: in numpy, the paper's networks, or anybody's own."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dordis.apps.learning.data import Samples
from dordis.apps.learning.models import Linear, Mlp, Model, Softmax
from dordis.apps.learning.networks import NETWORKS, Inputs
from dordis.apps.learning.pytorch import import_torch, seeded
from dordis.apps.learning.torch_model import TorchModel
from dordis.errors import InputError
from dordis.names import named

NUMPY = ("softmax", "linear", "mlp")


def make_model(name: str, inputs: Inputs, options: dict[str, Any], seed: int, device: str = "auto") -> Model:
    """Return the model that a name stands for; a torch.nn.Module is wrapped, and begins as the seed says."""
    if name not in NUMPY and name not in NETWORKS and ":" not in name:
        known = ", ".join((*NUMPY, *NETWORKS))
        raise InputError(f"there is no model '{name}': pass one of {known}, or package.module:name")
    try:
        if name in NUMPY:
            return _numpy_model(name, inputs, options)
        if name in NETWORKS:
            import_torch()
            with seeded(seed):
                return TorchModel(NETWORKS[name](inputs, **options), inputs.target, device)
        maker: Callable[..., Any] = named(name, "the model (app.options.model)", Callable)  # type: ignore[arg-type]
        with seeded(seed):
            model = maker(inputs.features, inputs.classes, **options)
    except TypeError as error:
        raise InputError(
            f"the model '{name}' is not made of features, classes and {sorted(options)}: {error}"
        ) from error
    return model if isinstance(model, Model) else TorchModel(model, inputs.target, device)


def _numpy_model(name: str, inputs: Inputs, options: dict[str, Any]) -> Model:
    """Return one of the models in numpy, if it fits the data."""
    if inputs.tokens:
        raise InputError(f"the model {name} takes numbers, and the data are tokens: pass albert or your own")
    if name == "mlp":
        return Mlp(inputs.features, inputs.classes, target=inputs.target, **options)
    wanted = "linear" if inputs.target == "regression" else "softmax"
    if name != wanted:
        raise InputError(f"the model {name} is not for {inputs.target}: pass {wanted} or mlp")
    return (
        Linear(inputs.features, **options) if name == "linear" else Softmax(inputs.features, inputs.classes, **options)
    )


def check_fits(model: Model, samples: Samples, classes: int) -> None:
    """A model takes a few samples of the data to scores and slopes of the shapes that they need, or is refused."""
    x, y = samples
    if isinstance(model, TorchModel):
        model.check_outputs(x, classes)
        return
    dim, start = model.dim, np.asarray(model.initial(np.random.default_rng(0)))
    check_shape("initial", start, (dim,))
    scores: Any = model.scores(start, x)
    check_shape("scores", scores, (len(x),) if classes == 1 and np.ndim(scores) == 1 else (len(x), classes))
    check_shape("gradient", model.gradient(start, x, y, np.zeros(classes)), (dim,))


def check_shape(what: str, values: Any, shape: tuple[int, ...]) -> None:
    """What a model's own method returns has the shape that its description promises."""
    try:
        given = np.asarray(values, np.float64).shape
    except (TypeError, ValueError):
        raise InputError(f"{what}() of the model returns {type(values).__name__}, not an array of numbers") from None
    if given != shape:
        raise InputError(f"{what}() of the model returns an array of shape {given}: it has to be {shape}")
