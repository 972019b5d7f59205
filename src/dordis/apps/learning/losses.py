"""What is learnt, by the kind of target: how far scores are from targets, and what is told of it."""

import math
from typing import Any, NamedTuple

import numpy as np

from dordis.apps.learning.data import IGNORED, Labels, Target
from dordis.privacy.skellam import Floats


class Totals(NamedTuple):
    """Over samples, or over the tokens of samples: the sum of losses, how many were right, and how many there are."""

    loss: float
    right: float
    number: float


def metrics(target: Target, totals: Totals) -> dict[str, float]:
    """Return what is told of a model: accuracy and loss, the root mean squared error, or perplexity.

    >>> metrics("next-token", Totals(2 * math.log(8.0), 1, 2))["perplexity"]
    8.0
    """
    loss, accuracy = totals.loss / max(totals.number, 1), totals.right / max(totals.number, 1)
    match target:
        case "regression":
            return {"rmse": math.sqrt(loss), "loss": loss}
        case "next-token":
            return {"perplexity": round(math.exp(min(loss, 700.0)), 9), "accuracy": accuracy, "loss": loss}
    return {"accuracy": accuracy, "loss": loss}


def total(target: Target, scores: Floats, y: Labels) -> Totals:
    """Add up over samples: scores (n, classes) and labels, or numbers and numbers."""
    if target == "regression":
        return Totals(float(((scores.reshape(y.shape) - y) ** 2).sum()), 0.0, y.size)
    shares = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shares).sum(axis=1)) - shares[np.arange(y.size), y]
    return Totals(float(losses.sum()), float((scores.argmax(axis=1) == y).sum()), y.size)


def torch_losses(target: Target, scores: Any, y: Any, offset: Any) -> tuple[Any, Any]:
    """Return the loss of each sample, or of each token, and 1 where there is one, as tensors."""
    import torch

    if target == "regression":
        losses = (scores.reshape(y.shape) - y) ** 2
        return losses, torch.ones_like(losses)
    if target == "classification":
        losses = torch.nn.functional.cross_entropy(scores + offset, y, reduction="none")
        return losses, torch.ones_like(losses)
    flat = torch.nn.functional.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), y.reshape(-1), ignore_index=IGNORED, reduction="none"
    )
    return flat.reshape(y.shape), (y != IGNORED).to(flat.dtype)
