"""The RDP of a sum of discrete Gaussians.

Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning", 2021, proposition 14.
Sums of discrete Gaussians are not discrete Gaussians, so noise cannot be taken out of them again: XNoise is refused.
"""

import math

import numpy as np

from dordis.errors import InputError
from dordis.privacy.skellam import Floats, Orders

LEAST_SCALE = 0.5


def distance(clients: int, scale: float) -> float:
    """Return tau = 10 sum over k = 1..n-1 of exp(-2 pi^2 g^2 k / (k + 1)): how far the sum is from Gaussian."""
    k = np.arange(1, clients, dtype=np.float64)
    return float(10 * np.exp(-2 * (math.pi * scale) ** 2 * k / (k + 1)).sum())


def rdp(orders: Orders, clients: int, scale: float, l2: float, l1: float, dim: int) -> Floats:
    """Return the RDP of the sum of n = `clients` discrete Gaussians of scale g each; count only those that are honest.

    With S = sqrt(n) g, alpha/2 times the least of (D2/S)^2 + 2 tau d / alpha, (D2/S)^2 + 2 (D1/S) tau + tau^2 d, and
    (D2/S + tau sqrt d)^2.
    """
    if clients < 1:
        raise InputError(f"noise comes from at least one honest client, not {clients}")
    if not scale >= LEAST_SCALE:
        raise InputError(f"the scale of a discrete Gaussian is at least {LEAST_SCALE} for this bound, not {scale}")
    if (orders < 2).any():
        raise InputError("orders are at least 2")
    tau, total = distance(clients, scale), math.sqrt(clients) * scale
    half = orders.astype(np.float64) / 2
    near, ratio = (l2 / total) ** 2, l1 / total
    by_ratio: Floats = half * near + tau * dim
    by_norm = half * min(near + 2 * ratio * tau + tau**2 * dim, (l2 / total + tau * math.sqrt(dim)) ** 2)
    return np.minimum(by_ratio, by_norm)
