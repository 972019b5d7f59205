"""Public features of images: fixed functions of one image, so that they cost no privacy.

Scattering maps are pooled, compressed by a square root, and brought to norm 1 order by order.  The result is centred
and whitened by the statistics of images that the package draws itself, and brought to one length.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dordis.apps.learning.features import synthetic
from dordis.apps.learning.features.scattering import Images, Maps, Scattering
from dordis.errors import InputError

Features = npt.NDArray[np.float32]

DRAWN = 4000
"""Synthetic images that the statistics are taken of."""
LENGTH = 5.0
"""Norm of the features of an image."""
_SEED = 1
_BATCH = 256


@dataclass(frozen=True)
class Whitening:
    """Subtract a centre, and scale directions in which the synthetic images vary a lot down."""

    centre: Features
    matrix: Features

    @classmethod
    def of(cls, features: Features, ridge: float) -> "Whitening":
        """Take the statistics: the matrix is (C + ridge * mean eigenvalue)^-1/2."""
        centre = features.mean(0)
        values, vectors = np.linalg.eigh(np.cov(features - centre, rowvar=False).astype(np.float64))
        scale = 1 / np.sqrt(np.maximum(values, 0) + ridge * values.mean())
        return cls(centre, ((vectors * scale) @ vectors.T).astype(np.float32))

    def __call__(self, features: Features) -> Features:
        """Return the features, centred, whitened and of one length."""
        whitened = (features - self.centre) @ self.matrix
        lengths = np.maximum(np.linalg.norm(whitened, axis=1, keepdims=True), 1e-12)
        return np.asarray(whitened * (LENGTH / lengths), np.float32)


def scattered(images: npt.NDArray[np.floating]) -> Features:
    """Return the features of images: (count, size, size) grey, or (count, 3, size, size) colour, in 0..1.

    An image of 28 x 28 gives 729 of them, one of 3 x 32 x 32 gives 1,840.
    """
    grey = images.ndim == 3
    if not grey and (images.ndim != 4 or images.shape[1] != 3):
        raise InputError(f"images have the shape (count, size, size) or (count, 3, size, size), not {images.shape}")
    raw, whitening = (_grey, _whitening_grey) if grey else (_colour, _whitening_colour)
    return whitening(images.shape[-1])(_in_batches(images, raw))


def _in_batches(images: npt.NDArray[np.floating], raw: Callable[[Images], Features]) -> Features:
    starts = range(0, max(1, len(images)), _BATCH)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda start: raw(np.asarray(images[start : start + _BATCH], np.float32)), starts)
        return np.concatenate(list(parts))


def _grey(images: Images) -> Features:
    transform = Scattering(images.shape[-1])
    return _compressed(pooled(transform.maps(images), 3), transform.orders)


def _colour(images: Images) -> Features:
    """Return the mean over an image and its mirror image: brightness to order 2, the two colours to order 1."""
    return np.asarray((_one_side(images) + _one_side(images[..., ::-1])) / 2, np.float32)


def _one_side(images: Images) -> Features:
    red, green, blue = images[:, 0], images[:, 1], images[:, 2]
    bright = 0.299 * red + 0.587 * green + 0.114 * blue
    whole, plain = Scattering(images.shape[-1]), Scattering(images.shape[-1], order=1)
    parts = [_compressed(pooled(whole.maps(bright), 4), whole.orders)]
    parts += [_compressed(pooled(plain.maps(chroma), 4), plain.orders) for chroma in (blue - bright, red - bright)]
    return np.concatenate(parts, axis=1)


def pooled(maps: Maps, cells: int) -> Maps:
    """Average maps over a grid of cells x cells, which overlap where the points cannot be divided evenly."""
    points = maps.shape[-1]
    rows = np.zeros((cells, points), np.float32)
    for cell in range(cells):
        part = slice(cell * points // cells, -(-(cell + 1) * points // cells))
        rows[cell, part] = 1 / (part.stop - part.start)
    return np.asarray(rows @ maps @ rows.T, np.float32)


def _compressed(maps: Maps, orders: Sequence[int]) -> Features:
    """Take the square root, and bring every order to norm 1."""
    rooted = np.sign(maps) * np.sqrt(np.abs(maps))
    parts, start = [], 0
    for count in orders:
        part = rooted[:, start : start + count].reshape(len(maps), -1)
        parts.append(part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-6))
        start += count
    return np.concatenate(parts, axis=1)


@lru_cache(maxsize=4)
def _whitening_grey(size: int) -> Whitening:
    return Whitening.of(_in_batches(synthetic.strokes(DRAWN, size, _SEED), _grey), ridge=0.3)


@lru_cache(maxsize=4)
def _whitening_colour(size: int) -> Whitening:
    return Whitening.of(_in_batches(synthetic.dead_leaves(DRAWN, size, _SEED), _colour), ridge=0.1)
