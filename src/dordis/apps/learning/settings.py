"""What can be set for federated learning: data, model, training, and the server's step."""

from typing import Any

import msgspec

from dordis.apps.learning.data import Target
from dordis.apps.learning.optim import FedAvg, Optimiser
from dordis.apps.learning.partition import Partition
from dordis.apps.learning.sources import DIGITS, WORDS
from dordis.apps.learning.trainer import Training
from dordis.apps.learning.weights import SampleWeights
from dordis.errors import InputError


class Settings(Training, frozen=True):
    """Say what is learnt and how, beside what `Training` says of a client's part.

    The defaults are made for digits, 100 clients with 50 in a round, 20 rounds, epsilon 6 and a clip of 1.

    `data` is a name, a file or a folder, see `sources`; paths are relative to the configuration.  `client`, `label` and
    `test` are for tables: two of their columns, and a public table.  `shape` is that of an input whose file does not
    tell, `classes` how many there are, 0 if the labels tell, and `vocabulary` a public list of words, one a line, or
    how many tokens words are hashed to.  `partition` says who holds what:
    if it is not given, each key of the data is a client, or, where the data have none, mixes of labels are dealt.
    `centred` takes its own mean from each of the digits, and is for them only.  `features` are public ones, computed
    from each input by itself: "scattering" for images, or "package.module:function" of your own.  `model` is
    "softmax", "linear", "mlp", with torch "cnn", "resnet18", "vgg19" or "albert", or "package.module:name" of your own:
    what is called with the number of features, that of classes
    and `options`, and returns a `Model` or a torch.nn.Module.  `average` is the weight of the past in the moving
    average of the server's parameters, which is what is evaluated and kept; clients start from the newest.  `weights`
    let clients with more samples count more, `device` is where torch computes, and `tested` how many of the test data
    are evaluated, from the first on; 0: all.
    """

    data: str = DIGITS
    data_dir: str = ""
    client: str | None = None
    label: str | None = None
    test: str | None = None
    target: Target = "classification"
    shape: tuple[int, ...] = ()
    classes: int = 0
    vocabulary: str | int = WORDS
    centred: bool | None = None
    partition: Partition | None = None
    features: str = ""
    model: str = "softmax"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    optimiser: Optimiser = FedAvg()
    average: float = 0.8
    weights: SampleWeights | None = None
    device: str = "auto"
    tested: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.average < 1:
            raise InputError(f"the weight of the past in the average lies in 0..1, below 1, not at {self.average}")
        if self.centred and self.data != DIGITS:
            raise InputError(f"centred is for {DIGITS} only: leave it out")
