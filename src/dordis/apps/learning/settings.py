"""Options of federated learning (data, model, local training, step of the server), and defaults for tables."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dordis.apps.learning.optim import FedAvg, Optimiser, SampleWeights
from dordis.apps.learning.partitioned_data import Partition, Target
from dordis.apps.learning.sources import DIGITS, WORDS
from dordis.apps.learning.trainer import Training
from dordis.apps.tables.description import Table
from dordis.apps.tables.encoding import Encoder
from dordis.config.reading import explain_error
from dordis.errors import InputError
from dordis.rounds.app import Task


class Settings(Training, frozen=True):
    """Options of federated learning, including the options of local training (`Training`).

    The defaults are chosen for `digits` with 100 clients, 50 clients a round, 20 rounds, epsilon 6 and a clip bound of
    1.  `lr` has its default for `softmax`; other models, regressions and `adamw` have lower ones (`with_default_rate`).
    """

    data: str = DIGITS
    """Name of a data set, or the path of a file or folder."""
    data_dir: str = ""
    """Folder with the files of a named data set; if empty, they are downloaded (LEAF's files cannot be downloaded)."""
    client: str | None = None
    """Column that names the client of a row, for a CSV file without `table`."""
    label: str | None = None
    """Column to predict, for a CSV file without `table`."""
    table: Table | None = None
    """Public description of a table: its label and client columns, ranges, categories, and how to treat empty cells."""
    test: str | None = None
    """Path of a public table on which the model is tested."""
    target: Target = "classification"
    """Kind of prediction: `classification` (labels are classes), `regression` (numbers) or `next-token`."""
    shape: tuple[int, ...] = ()
    """Shape of an input, if the file does not contain it."""
    classes: int = 0
    """Number of classes; 0 takes it from the labels."""
    vocabulary: str | int = WORDS
    """File with a public list of words, one word on each line; or the number of tokens to which words are hashed."""
    centred: bool | None = None
    """Whether to subtract from each image its own mean; for `digits` only, where it is the default."""
    partition: Partition | None = None
    """Division of the samples among clients.  By default each key of the data, such as a writer, is one client.
    Without keys, each client gets its own mix of labels (`Lda`), or random samples if there are no classes."""
    features: str = ""
    """Feature function, a public function of one input: `scattering` for images, or `package.module:function`."""
    model: str = "softmax"
    """`softmax`, `linear`, `mlp`; with torch `cnn`, `resnet18`, `vgg19`, `albert`; or `package.module:name`.

    A model of your own is called with the number of features, the number of classes and `options`; it returns a `Model`
    or a `torch.nn.Module`.
    """
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further arguments of the model by name, such as `hidden` of `mlp`."""
    optimiser: Optimiser = FedAvg()
    """Optimiser of the server."""
    average: float = 0.8
    """Weight of the past in the moving average of the models, which is evaluated and exported; 0 switches it off."""
    weights: SampleWeights | None = None
    """Weights of clients by their number of samples; by default all clients count the same."""
    device: str = "auto"
    """Device on which torch computes; `auto` is the graphics processor, or the CPU if there is none."""
    tested: int = 0
    """Number of test inputs that are used, starting with the first; 0 is all."""
    own_files: bool = False
    """Whether each deployed client trains on all rows of its own file."""
    class_weights: dict[str, float] = msgspec.field(default_factory=dict)
    """Weights of classes in the loss, by name; 1 if not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.average < 1:
            raise InputError(f"average, the weight of the past, must be at least 0 and below 1, not {self.average}")
        if self.centred and self.data != DIGITS:
            raise InputError(f"centred is for {DIGITS} only: leave it out")
        if not all(0 < weight < math.inf for weight in self.class_weights.values()):
            raise InputError("class_weights must be positive and finite")
        if self.table is not None and (self.label or self.client):
            raise InputError("label and client of a table belong in app.options.table: remove them from app.options")


def read_settings(options: Mapping[str, Any], section: str = "app.options") -> Settings:
    """Return `Settings` with these options; raise an `InputError` that names the first wrong option.

    `section` is the part of the configuration with the options; it is empty if they are arguments of a call.
    """
    try:
        return msgspec.convert(dict(options), Settings)
    except msgspec.ValidationError as error:
        raise InputError(explain_error(str(error), section, Settings)) from None


NETWORK_RATE = 0.3
"""Default of the clients' learning rate for networks, unless the default for linear models is lower.

At higher rates networks diverge.  The value was chosen on `digits` with 60 clients, 20 rounds, 5 epochs and two kinds
of convolutional networks.
"""


REGRESSION_RATE = 0.05
"""Default of the clients' learning rate for regressions on data that are not a table.

The gradient of a squared error grows with inputs and targets.  For 4 and 20 standard normal inputs and linear targets,
without noise, `linear`, `mlp` and networks of torch converged at this rate; at 0.3 most of them diverged.
"""


ADAM_RATE = 0.001
"""Default of the clients' learning rate for `adamw`, as in torch."""


def default_rate(settings: Settings, model: Any, rate: float) -> float:
    """Return the clients' default learning rate for `model`, which is the name of a model or an object.

    `rate` is the default for `softmax` and `linear`, trained by SGD.
    """
    if settings.method == "adamw":
        return ADAM_RATE
    return rate if isinstance(model, str) and model in ("softmax", "linear") else min(rate, NETWORK_RATE)


def with_default_rate(settings: Settings, given: Collection[str], model: Any) -> Settings:
    """Return settings for data that are not a table: `lr` gets the model's default, unless `given` names `lr`."""
    if "lr" in given:
        return settings
    rate = REGRESSION_RATE if settings.target == "regression" else settings.lr
    return msgspec.structs.replace(settings, lr=default_rate(settings, model, rate))


RECORD_RATE = 4.0
"""With records as the unit of privacy, the server's default rate is RECORD_RATE / sqrt(`encoder.width` + 1)."""


def table_defaults(settings: Settings, given: Collection[str], encoder: Encoder, task: Task, model: Any) -> Settings:
    """Return settings for a table; settings whose names are not in `given` get defaults for scaled columns.

    An encoded row has `encoder.width` + 1 numbers in -1..1, including the constant of the intercept, so its norm grows
    with the square root of this number.  The learning rates are divided by this root.  Then a typical update has a norm
    of about 1, the usual clip bound, and a step of the server changes the scores by the same amount for every width.
    In a classification with few clients the server's steps are shorter, so that the noise of some twenty rounds moves
    the scores by about 1.  Clients train for one epoch, since most have few rows.  `balance` is 0, since a client with
    one row has only one class.

    With records as the unit of privacy the server steps along the mean of clipped gradients.  The noise on this mean is
    small, and the server's learning rate is `RECORD_RATE` divided by this root.
    """
    root = math.sqrt(encoder.width + 1)
    if encoder.table.target == "classification":
        lr, server = 3.0 / root, FedAvg(lr=min(10.0, task.population / 20) / root)
    else:
        lr, server = 2.0 / root, FedAvg(lr=1.0 / root, momentum=0.5)
    if task.by_record:
        server = FedAvg(lr=RECORD_RATE / root, momentum=0.5)
    chosen: dict[str, Any] = {
        "lr": default_rate(settings, model, lr),
        "optimiser": server,
        "epochs": 1,
        "average": 0.5,
        "balance": 0.0,
    }
    if encoder.table.target == "regression" and settings.model == "softmax":
        chosen["model"] = "linear"
    kept = {name: value for name, value in chosen.items() if name not in given}
    return msgspec.structs.replace(settings, target=encoder.table.target, **kept)


def weigh_classes(settings: Settings, encoder: Encoder | None, classes: int) -> Settings:
    """Return the settings with `class_offset` computed from `class_weights`, so that it has the same effect.

    The offset of a class is -log(weight); training adds it to the score of the class in the loss.  The scores that
    minimise this loss predict the same probabilities as the scores that minimise the loss with weights.  Raise
    InputError if a weight is for an unknown class.
    """
    if not settings.class_weights:
        return settings
    names = encoder.table.classes() if encoder is not None else tuple(map(str, range(classes)))
    if unknown := settings.class_weights.keys() - set(names):
        raise InputError(f"class_weights name {', '.join(sorted(unknown))}: the classes are {', '.join(names)}")
    offset = tuple(-math.log(settings.class_weights.get(name, 1.0)) for name in names)
    return msgspec.structs.replace(settings, class_offset=offset)
