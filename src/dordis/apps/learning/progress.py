"""Warnings during training: the loss rises, or the model is no better than a constant prediction."""

from collections import Counter
from itertools import pairwise

import numpy as np

from dordis.apps.learning.data import Labels

RISES = 2
"""Number of rounds in a row with a rising loss that causes a warning."""
MARGIN = 1.1
"""A rising loss causes a warning only above this factor times the first loss: noise moves a small loss up and down."""
PATIENCE = 3
"""Number of rounds after which a model that is no better than a constant causes a warning."""
USEFUL_AUC = 0.6
"""A model with a larger AUC is useful even if its accuracy is below the share of a frequent class."""


class Progress:
    """Metrics of the rounds so far, and the warnings that follow from them."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._pending: list[str] = []
        self._given: set[str] = set()

    def add(self, metrics: dict[str, float], y: Labels) -> None:
        """Record the metrics of a round, measured on the test labels `y`."""
        loss = metrics.get("loss")
        if loss is None:
            return
        self._losses.append(loss)
        recent = self._losses[-RISES - 1 :]
        rising = len(recent) > RISES and all(later > earlier for earlier, later in pairwise(recent))
        if rising and loss > MARGIN * self._losses[0]:
            self._warn(
                "rises",
                f"the loss has risen {RISES} rounds in a row, to {loss:.3g}: the run diverges; stop it and lower lr or "
                "optimiser.lr",
            )
        if len(self._losses) >= PATIENCE and (reason := worse_than_constant(metrics, y)):
            self._warn(
                "constant",
                f"after {len(self._losses)} rounds {reason}: the model is no better than a constant; see dordis plan "
                "for the clients and the epsilon that it takes, and check the ranges of the table",
            )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._given:
            self._given.add(kind)
            self._pending.append(text)

    def take_warnings(self) -> tuple[str, ...]:
        """Return the warnings that were not returned before."""
        taken, self._pending = tuple(self._pending), []
        return taken


def worse_than_constant(metrics: dict[str, float], y: Labels) -> str:
    """Return the reason why a model is no better than a constant prediction; empty if it is better."""
    if "r2" in metrics:
        return f"R^2 is {metrics['r2']:.2g}" if metrics["r2"] <= 0 else ""
    accuracy, known = metrics.get("accuracy"), np.ndim(y) == 1 and np.asarray(y).dtype.kind in "iu"
    if accuracy is None or not known or not len(y):
        return ""
    share = Counter(np.asarray(y).tolist()).most_common(1)[0][1] / len(y)
    if accuracy > share or metrics.get("auc", 0.0) > USEFUL_AUC:
        return ""
    return f"the accuracy is {accuracy:.1%}, and the most frequent class has {share:.1%}"
