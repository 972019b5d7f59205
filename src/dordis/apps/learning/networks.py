"""Construct models by name: numpy models, the paper's networks (CNN, ResNet-18, VGG-19, ALBERT), or a user's model.

The networks are torch modules and need the extra 'torch'; ALBERT needs the extra 'nlp' as well.

ResNet-18 and VGG-19 normalise groups of channels within one image.  Batch normalisation would keep running statistics
of clients' data, which no noise protects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dordis.apps.learning.models import Linear, Mlp, Model, Softmax
from dordis.apps.learning.partitioned_data import Samples, Target
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import import_torch, seed_torch
from dordis.errors import InputError, MissingExtra
from dordis.loading import load_object

GROUPS = 32
"""Number of groups into which channels are divided for normalisation: Wu and He, "Group Normalization", 2018."""
_VGG19 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)
"""The layers of VGG-19 (configuration E of Simonyan and Zisserman): the number of channels of each convolution, and 0
for a pooling layer, which halves width and height.
"""


@dataclass(frozen=True)
class Inputs:
    """Shape and kind of a model's inputs, and number and kind of its outputs.

    `shape` is the shape of one input, and `classes` the number of scores for an input.  `tokens` is the size of the
    vocabulary if inputs are tokens, else 0.
    """

    shape: tuple[int, ...]
    classes: int
    tokens: int = 0
    target: Target = "classification"
    folder: Path = Path()
    """Folder of the configuration, to which paths in the options are relative."""

    @property
    def features(self) -> int:
        """Return the number of values in one input: its length when it is flattened to a row."""
        length = 1
        for size in self.shape:
            length *= size
        return length

    def image(self, name: str) -> tuple[int, int, int]:
        """Return channels, height and width; raise an InputError that names the model if inputs are not images."""
        shape = (1, *self.shape) if len(self.shape) == 2 else self.shape
        if self.tokens or len(shape) != 3:
            raise InputError(
                f"the model {name} takes images, but an input has the shape {self.shape}"
                + (" tokens" if self.tokens else ": if it is an image, set shape, such as [28, 28]")
            )
        return shape


def _nn() -> Any:
    try:
        from torch import nn
    except ModuleNotFoundError:
        raise MissingExtra("torch") from None
    return nn


def cnn(inputs: Inputs, dropout: Sequence[float] = (0.25, 0.5)) -> Any:
    """Return the CNN of Kairouz et al. 2021 and Agarwal et al. 2021: on FEMNIST it has 1,018,174 parameters."""
    nn, (channels, height, width) = _nn(), inputs.image("cnn")
    if len(dropout) != 2 or not all(0 <= rate < 1 for rate in dropout):
        raise InputError(f"the model cnn has two rates of dropout in 0..1, below 1, not {list(dropout)}")
    pooled = [((size - 2) // 2 - 2) for size in (height, width)]
    if min(pooled) < 1:
        raise InputError(f"the model cnn takes images of 8 by 8 pixels or more, not {height} by {width}")
    return nn.Sequential(
        nn.Unflatten(1, (channels, height, width)),
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Dropout(dropout[0]) if dropout[0] else nn.Identity(),
        nn.Flatten(),
        nn.Linear(64 * pooled[0] * pooled[1], 128),
        nn.ReLU(),
        nn.Dropout(dropout[1]) if dropout[1] else nn.Identity(),
        nn.Linear(128, inputs.classes),
    )


def resnet18(inputs: Inputs, width: int = 64) -> Any:
    """Return ResNet-18 for small images (He et al. 2016, networks for CIFAR): 11,173,962 parameters for 10 classes."""
    nn, shape = _nn(), inputs.image("resnet18")
    if width % GROUPS:
        raise InputError(f"the width of resnet18 is a multiple of {GROUPS}, not {width}")
    layers = [nn.Unflatten(1, shape), nn.Conv2d(shape[0], width, 3, padding=1, bias=False), *_group_norm(nn, width)]
    before = width
    for stage in range(4):
        channels = width << stage
        for block in range(2):
            layers.append(_residual(nn, before, channels, stride=2 if stage and not block else 1))
            before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, inputs.classes))


def _group_norm(nn: Any, channels: int) -> list[Any]:
    return [nn.GroupNorm(GROUPS, channels), nn.ReLU()]


def _residual(nn: Any, before: int, channels: int, stride: int) -> Any:
    class Residual(nn.Module):  # type: ignore[misc]
        """Add the input to the output of two convolutions; if their shapes differ, add a convolution of the input."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(before, channels, 3, stride, 1, bias=False),
                *_group_norm(nn, channels),
                nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
                nn.GroupNorm(GROUPS, channels),
            )
            same = stride == 1 and before == channels
            self.outer = (
                nn.Identity()
                if same
                else nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.GroupNorm(GROUPS, channels))
            )

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.inner(x) + self.outer(x))

    return Residual()


def vgg19(inputs: Inputs) -> Any:
    """Return VGG-19 for small images, with one linear layer on top: 20,040,522 parameters for 10 classes."""
    nn, shape = _nn(), inputs.image("vgg19")
    if min(shape[1:]) < 32:
        raise InputError(f"the model vgg19 halves images five times: they are 32 by 32 pixels or more, not {shape[1:]}")
    layers, before = [nn.Unflatten(1, shape)], shape[0]
    for channels in _VGG19:
        if not channels:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(before, channels, 3, padding=1), *_group_norm(nn, channels)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, inputs.classes))


def albert(inputs: Inputs, weights: str = "", **config: Any) -> Any:
    """Return ALBERT base with a head that predicts the next token: 15,091,680 parameters for 30,000 tokens.

    `weights` is a folder with a model that transformers saved; nothing is downloaded.  `config` changes fields of
    transformers' AlbertConfig, such as hidden_size and num_hidden_layers.
    """
    if inputs.target != "next-token":
        raise InputError("the model albert predicts the next token: it needs data of words, such as reddit")
    try:
        import torch
        from transformers import AlbertConfig, AlbertForMaskedLM  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise MissingExtra("nlp") from None
    if weights:
        inner = _load_weights(
            partial(AlbertForMaskedLM.from_pretrained, local_files_only=True), inputs.folder / weights
        )
    else:
        base = {"embedding_size": 128, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
        made: Any = AlbertForMaskedLM
        inner = made(AlbertConfig(vocab_size=inputs.tokens, tie_word_embeddings=False, **{**base, **config}))

    class NextToken(torch.nn.Module):
        """ALBERT with a mask by which a token attends only to itself and to earlier tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            later = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)
            return self.inner(input_ids=x, attention_mask=later[None, None]).logits

    return NextToken()


def _load_weights(load: Callable[[Path], Any], path: Path) -> Any:
    try:
        return load(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} has no ALBERT for transformers: {str(error).splitlines()[0]}") from None


NETWORKS: dict[str, Callable[..., Any]] = {"cnn": cnn, "resnet18": resnet18, "vgg19": vgg19, "albert": albert}


NUMPY = ("softmax", "linear", "mlp")


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings from which one of the `NETWORKS` can be constructed again, stored with a saved model."""

    name: str
    shape: tuple[int, ...]
    classes: int
    tokens: int
    target: Target
    options: dict[str, Any]
    folder: str = ""
    """Folder to which the option `weights` is relative; empty if there is no such option."""

    def construct(self) -> Model:
        """Return the network, untrained: the saved parameters are not set."""
        inputs = Inputs(self.shape, self.classes, self.tokens, self.target, Path(self.folder))
        return make_model(self.name, inputs, self.options, seed=0)


def make_model(name: str, inputs: Inputs, options: dict[str, Any], seed: int, device: str = "auto") -> Model:
    """Return the model `name`: a built-in model, or what the function `package.module:name` returns.

    A torch module is wrapped as `TorchModel`; random initial parameters are drawn from `seed`.  Raise InputError if
    there is no such model, or if it does not fit the inputs or the options.
    """
    if name not in NUMPY and name not in NETWORKS and ":" not in name:
        known = ", ".join((*NUMPY, *NETWORKS))
        raise InputError(f"there is no model '{name}': pass one of {known}, or package.module:name")
    try:
        if name in NUMPY:
            return _numpy_model(name, inputs, options)
        if name in NETWORKS:
            import_torch()
            with seed_torch(seed):
                network = TorchModel(NETWORKS[name](inputs, **options), inputs.target, device)
            folder = str(inputs.folder.resolve()) if options.get("weights") else ""
            network.architecture = Architecture(
                name, inputs.shape, inputs.classes, inputs.tokens, inputs.target, options, folder
            )
            return network
        maker: Callable[..., Any] = load_object(name, "the model (app.options.model)", Callable)  # type: ignore[arg-type]
        with seed_torch(seed):
            model = maker(inputs.features, inputs.classes, **options)
    except TypeError as error:
        raise InputError(
            f"the model '{name}' does not take features, classes and the options {sorted(options)}: {error}"
        ) from error
    return model if isinstance(model, Model) else TorchModel(model, inputs.target, device)


def _numpy_model(name: str, inputs: Inputs, options: dict[str, Any]) -> Model:
    if inputs.tokens:
        raise InputError(f"the model {name} takes numbers, but the data are tokens: use albert or a model of your own")
    if name == "mlp":
        return Mlp(inputs.features, inputs.classes, target=inputs.target, **options)
    wanted = "linear" if inputs.target == "regression" else "softmax"
    if name != wanted:
        raise InputError(f"the model {name} is not for {inputs.target}: use {wanted} or mlp")
    return (
        Linear(inputs.features, inputs.classes, **options)
        if name == "linear"
        else Softmax(inputs.features, inputs.classes, **options)
    )


def check_fits(model: Model, samples: Samples, classes: int) -> None:
    """Raise InputError unless the model's scores and gradient on a few `samples` have the expected shapes."""
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
    """Raise InputError unless `values`, the result of the model's method named `what`, have the shape `shape`."""
    try:
        given = np.asarray(values, np.float64).shape
    except (TypeError, ValueError):
        raise InputError(f"{what}() of the model returns {type(values).__name__}, not an array of numbers") from None
    if given != shape:
        raise InputError(f"{what}() of the model returns an array of shape {given}: it must be {shape}")
