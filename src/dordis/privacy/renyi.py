"""Renyi divergences (RDP) of sums under Skellam and under discrete Gaussian noise.

Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning", 2021, and Kairouz, Liu
and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning", 2021, proposition 14.
"""

import math

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.privacy.scaling import Floats

Orders = npt.NDArray[np.int64]

LEAST_SCALE = 0.5


def skellam_rdp(orders: Orders, l2_squared: float, l1: float, variance: float) -> Floats:
    """Return a bound on the RDP of a sum under Skellam noise of variance mu, at integer orders alpha only.

    It is alpha Delta2^2 / (2 mu) + min{((2 alpha - 1) Delta2^2 + 6 Delta1) / (4 mu^2), 3 Delta1 / (2 mu)}, where Delta2
    and Delta1 are the l2- and l1-sensitivity of the sum.
    """
    if not np.issubdtype(orders.dtype, np.integer) or (orders < 2).any():
        raise InputError("the RDP of Skellam noise is known at integer orders from 2 on")
    if variance <= 0:
        return np.full(orders.shape, math.inf if l2_squared else 0.0)
    alpha = orders.astype(np.float64)
    correction = ((2 * alpha - 1) * l2_squared + 6 * l1) / (4 * variance**2)
    bound: Floats = alpha * l2_squared / (2 * variance) + np.minimum(correction, 3 * l1 / (2 * variance))
    return bound


def discrete_gaussian_distance(clients: int, scale: float) -> float:
    """Return tau = 10 sum over k = 1..n-1 of exp(-2 pi^2 g^2 k / (k + 1)), with n = `clients` and g = `scale`.

    It bounds the distance between the sum of n discrete Gaussians of scale g and one discrete Gaussian.
    """
    k = np.arange(1, clients, dtype=np.float64)
    return float(10 * np.exp(-2 * (math.pi * scale) ** 2 * k / (k + 1)).sum())


def discrete_gaussian_rdp(orders: Orders, clients: int, scale: float, l2: float, l1: float, dim: int) -> Floats:
    """Return a bound on the RDP of a sum under discrete Gaussian noise of scale g from each of n honest clients.

    With S = sqrt(n) g, alpha/2 times the least of (D2/S)^2 + 2 tau d / alpha, (D2/S)^2 + 2 (D1/S) tau + tau^2 d, and
    (D2/S + tau sqrt d)^2.  alpha is the order, D2 = `l2` and D1 = `l1` are sensitivities, d = `dim`, and tau is
    `discrete_gaussian_distance`.
    """
    if clients < 1:
        raise InputError(f"noise comes from at least one honest client, not {clients}")
    if not scale >= LEAST_SCALE:
        raise InputError(f"the scale of a discrete Gaussian is at least {LEAST_SCALE} for this bound, not {scale}")
    if (orders < 2).any():
        raise InputError("orders are at least 2")
    tau, total = discrete_gaussian_distance(clients, scale), math.sqrt(clients) * scale
    half = orders.astype(np.float64) / 2
    near, ratio = (l2 / total) ** 2, l1 / total
    by_ratio: Floats = half * near + tau * dim
    by_norm = half * min(near + 2 * ratio * tau + tau**2 * dim, (l2 / total + tau * math.sqrt(dim)) ** 2)
    return np.minimum(by_ratio, by_norm)
