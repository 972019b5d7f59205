"""Images that nobody took: random strokes, and leaves of random colours that cover each other.

Their statistics stand in for those of real images where centring and whitening must not cost privacy.
"""

import numpy as np
import numpy.typing as npt

Floats32 = npt.NDArray[np.float32]

_PEN = (0.9, 1.7)  # half the width of a stroke, in pixels of an image of 28
_REACH = 8.5  # of the strokes from the middle, in the same pixels
_LEAVES = 40
_COLOURS = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [0.5, -1.0, 0.5]]) / np.sqrt([[3.0], [2.0], [1.5]])
_SPREAD = np.array([0.27, 0.09, 0.04])  # of brightness, and of the two colours beside it: most of nature is greyish


def strokes(count: int, size: int, seed: int) -> Floats32:
    """Draw images of one to three curved strokes, white on black, as large as digits: (count, size, size) in 0..1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) * np.float32(28 / size)
    return np.stack([_strokes(x, y, rng) for _ in range(count)])


def _strokes(x: Floats32, y: Floats32, rng: np.random.Generator) -> Floats32:
    """Draw curves from the distance of every pixel to the nearest of many points of them."""
    t = np.linspace(0, 1, 30)[:, None]
    bends = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3]
    curves = np.concatenate([sum(bend * rng.uniform(-1, 1, 2) for bend in bends) for _ in range(rng.integers(1, 4))])
    low, high = curves.min(0), curves.max(0)
    points = (14 + _REACH * (2 * curves - low - high) / max(high - low)).astype(np.float32)
    squared = (x[..., None] - points[:, 0]) ** 2 + (y[..., None] - points[:, 1]) ** 2
    return np.asarray(np.clip(rng.uniform(*_PEN) + 0.5 - np.sqrt(squared.min(-1)), 0, 1), np.float32)


def dead_leaves(count: int, size: int, seed: int) -> Floats32:
    """Draw ellipses of all sizes that cover each other, softly shaded: (count, 3, size, size) in 0..1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    return np.stack([_leaves(x, y, size, rng) for _ in range(count)])


def _leaves(x: Floats32, y: Floats32, size: int, rng: np.random.Generator) -> Floats32:
    image = np.broadcast_to(_colour(rng)[:, None, None], (3, *x.shape)).astype(np.float32)
    for _ in range(_LEAVES):
        radius = size * 0.05 / rng.uniform(0.03, 1.0) ** 0.7
        centre, angle, flat = rng.uniform(0, size, 2), rng.uniform(0, np.pi), rng.uniform(0.4, 1.0)
        along = (x - centre[0]) * np.cos(angle) + (y - centre[1]) * np.sin(angle)
        across = (y - centre[1]) * np.cos(angle) - (x - centre[0]) * np.sin(angle)
        covered = np.clip(radius - np.hypot(along, across / flat) + 0.5, 0, 1)
        shade = rng.normal(0, 0.1) * along / max(radius, 1.0)
        image = image * (1 - covered) + (_colour(rng)[:, None, None] + shade) * covered
    return np.clip(image, 0, 1).astype(np.float32)


def _colour(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return np.asarray(0.48 + (rng.normal(0, 1, 3) * _SPREAD * np.sqrt(3)) @ _COLOURS)
