"""Gaussian noise in floating point, for the baselines: central privacy, by a trusted server, and local privacy.

They are there to be compared with.  The low bits of floating-point noise are known to tell about what they hide
(Mironov, "On Significance of the Least Significant Bits for Differential Privacy", 2012): do not deploy them.
"""

import numpy as np

from dordis.crypto import prg
from dordis.privacy.skellam import Floats

FLOATING = "Gaussian noise in floating point, whose low bits may tell what they should hide: not to be deployed"
_STEP = prg.CALL // 8


def gaussian_noise(seed: bytes, sigma: float, dim: int) -> Floats:
    """Return `dim` normal samples of standard deviation `sigma`, a function of the seed, by inversion.

    >>> gaussian_noise(bytes(range(32)), 1.0, 3).round(2).tolist()
    [0.13, 0.31, -0.05]
    """
    from scipy.special import ndtri  # what only takes part needs no scipy

    context = prg.start(prg.from_seed(seed, b"dordis/v1/gaussian"))
    samples = np.empty(dim, np.float64)
    words = np.empty(min(_STEP, dim + dim % 2), "<u8")
    for at in range(0, dim, _STEP):
        piece = samples[at : at + _STEP]
        used = words[: piece.size + piece.size % 2]  # the keystream comes in blocks of two words
        prg.generate(context, used.view(np.uint8))
        chance = ((used[: piece.size] >> np.uint64(12)) + 0.5) * 2.0**-52
        ndtri(chance, out=piece)
        piece *= sigma
    return samples
