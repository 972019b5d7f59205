"""Public features of inputs: feature functions by name, and the scattering transform of images.

A feature function is a fixed function of one input, applied before training.  It may be fitted to synthetic images, but
never to the data of clients, so it costs no privacy.  The function `scattering` is for images.  A configuration names
your own function as `package.module:function`; the function gets inputs in their original shape.

The scattering transform takes moduli of wavelet transforms with Morlet wavelets (Bruna and Mallat, 2013).  Its results
are small images, called *maps*: with two scales and eight angles an image of 28 x 28 gives 81 maps of 7 x 7.  The
*order* of a map, 0 to 2, is the number of moduli taken one after the other.  Filters, padding and sequence of the maps
are the same as in the package kymatio; tests compare the results.  To make features, the maps are pooled, compressed by
a square root, and scaled to norm 1 separately for each order.  The features are then centred and whitened by the
statistics of synthetic images, which this module draws, and scaled to the norm `LENGTH`.
"""

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft

from dordis.apps.learning.partitioned_data import Dataset, Values
from dordis.durable_files import write_atomically
from dordis.errors import InputError
from dordis.loading import load_object

FeatureMap = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""A function from inputs, of the shape (count, ..), to rows of features, of the shape (count, features)."""

MAPS = {"scattering": "dordis.apps.learning.features:scatter_images"}
"""Built-in feature functions by name, as `package.module:function`."""
VERSION = b"dordis features 1"
"""Version of the built-in feature functions, hashed into the names of cached files.  Change it when such a function
gives other features, so that files with the old features are not used.
"""
WORTH_KEEPING = 5000
"""Least number of inputs whose features are cached."""


def with_features(data: Dataset, name: str, folder: Path) -> Dataset:
    """Return the data set with inputs replaced by their features, computed by the feature function `name`.

    If there are `WORTH_KEEPING` or more inputs, the features of a built-in function are cached in `folder`.
    """
    if data.tokens:
        raise InputError("feature maps take numbers, but these inputs are tokens: leave features out")
    train = _cached_features(data, data.x_train, name, folder)
    test = None if data.x_test is None else _cached_features(data, data.x_test, name, folder)
    return replace(data, x_train=train, x_test=test, shape=(), scale=1.0)


def _cached_features(data: Dataset, inputs: Values, name: str, folder: Path) -> Values:
    if name not in MAPS or len(inputs) < WORTH_KEEPING:
        return _compute_features(data, inputs, name)
    stamp = f"{name} {data.input_shape} {data.scale} {inputs.dtype} {inputs.shape}".encode()
    digest = hashlib.sha256(VERSION + stamp + np.ascontiguousarray(inputs).tobytes()).hexdigest()
    path = folder / "features" / f"{digest}.npy"
    if path.is_file():
        features: Values = np.load(path, allow_pickle=False)
        return features
    features = _compute_features(data, inputs, name)
    archive = io.BytesIO()
    np.save(archive, features, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, archive.getvalue())
    return features


def _compute_features(data: Dataset, inputs: Values, name: str) -> Values:
    shaped = data.as_inputs(inputs).reshape(len(inputs), *data.input_shape)
    features = np.asarray(_find_map(name)(shaped))
    if features.ndim != 2 or len(features) != len(inputs) or not np.isfinite(features).all():
        raise InputError(
            f"the features '{name}' give {features.dtype} {features.shape} for {len(inputs)} inputs: one row of "
            "finite numbers is needed for each input"
        )
    return features


def _find_map(name: str) -> FeatureMap:
    if name not in MAPS and ":" not in name:
        raise InputError(f"there are no features '{name}': pass one of {', '.join(MAPS)}, or package.module:function")
    given: FeatureMap = load_object(MAPS.get(name, name), "the features", Callable)  # type: ignore[arg-type]
    return given


Images = npt.NDArray[np.float32]
Maps = npt.NDArray[np.float32]
Filters = npt.NDArray[np.float32]

SCALES, ANGLES = 2, 8
STEP: int = 2**SCALES
"""Distance, in pixels of the image, between neighbouring points of a map (a result of the scattering transform)."""
_WIDTH, _FREQUENCY = 0.8, 0.75 * np.pi  # finest wavelet: envelope in pixels, radians a pixel
_WRAPS = range(-2, 3)  # periods of a repeated image, counted from this one, whose envelopes reach into this one
_SLICE = 4  # number of images whose moduli together fit into the cache
_PI = 3.1415  # kymatio uses pi with these digits


@dataclass(frozen=True)
class Scattering:
    """The scattering transform of images of `size` x `size` pixels, up to the order `order`, which is 1 or 2."""

    size: int
    order: int = 2

    def __post_init__(self) -> None:
        if self.size < 2 * STEP or self.order not in (1, 2):
            raise InputError(f"scattering is for images of {2 * STEP} pixels a side or more, of order 1 or 2")

    @property
    def orders(self) -> tuple[int, ...]:
        """Return the number of results (maps) of order 0, of order 1 and, if order 2 is computed, of order 2."""
        first, second = SCALES * ANGLES, ANGLES * ANGLES * SCALES * (SCALES - 1) // 2
        return (1, first, second)[: self.order + 1]

    def maps(self, images: Images) -> Maps:
        """Return the scattering transforms of images (count, size, size), as (count, maps, points, points)."""
        if images.ndim != 3 or images.shape[1:] != (self.size, self.size):
            raise InputError(f"the images have the shape {images.shape}, not (count, {self.size}, {self.size})")
        batches = [self._batch(images[start : start + _SLICE]) for start in range(0, len(images), _SLICE)]
        return np.concatenate(batches) if batches else np.zeros((0, sum(self.orders), 0, 0), np.float32)

    def _batch(self, images: Images) -> Maps:
        edge = (self._period - self.size) // 2
        padded = np.pad(
            images.astype(np.float32), ((0, 0), (edge, self._period - self.size - edge), (edge, edge)), "reflect"
        )
        spectrum = fft.fft2(padded)[:, None]
        fine, coarse = self._wavelets
        first = np.abs(fft.ifft2(spectrum * fine))
        found = [self._average_points(padded[:, None]), self._average_points(first)]
        found.append(self._average_points(np.abs(fft.ifft2(_halve(spectrum * coarse)))))
        if self.order == 2:
            second = fft.fft2(first)[:, :, None] * coarse
            found.append(self._average_points(np.abs(fft.ifft2(_halve(second))).reshape(len(images), -1, *self._half)))
        return np.concatenate(found, axis=1)

    def _average_points(self, moduli: Maps) -> Maps:
        """Return local averages of moduli, at one point for every `STEP` pixels."""
        rows = self._averages[moduli.shape[-1]]
        kept = np.asarray(rows.real @ moduli @ rows.real.T, np.float32)
        if rows.imag.any():
            kept -= rows.imag @ moduli @ rows.imag.T
        return kept

    @property
    def _period(self) -> int:
        return STEP * ((self.size + STEP) // STEP + 1)

    @property
    def _half(self) -> tuple[int, int]:
        return self._period // 2, self._period // 2

    @cached_property
    def _wavelets(self) -> tuple[Filters, Filters]:
        """Return the spectra of the wavelets of both scales, by angle."""
        angles = [(ANGLES // 2 - 1 - turn) * np.pi / ANGLES for turn in range(ANGLES)]
        fine, coarse = (
            np.stack([_morlet(self._period, _WIDTH * 2**j, angle, _FREQUENCY / 2**j) for angle in angles])
            for j in range(SCALES)
        )
        return fine, coarse

    @cached_property
    def _averages(self) -> dict[int, npt.NDArray[np.complex64]]:
        """Return the matrices that average moduli along one dimension, by the number of points in this dimension.

        There is one matrix for moduli at full, and one for moduli at half resolution.  The weights of an average are
        Gaussian, so averaging rows and then columns averages over both dimensions.
        """
        points = np.arange(self._period)
        width = _WIDTH * 2 ** (SCALES - 1)
        envelope = sum(np.exp(-((points + wrap * self._period) ** 2) / (2 * width**2)) for wrap in _WRAPS)
        spectrum = np.real(fft.fft(envelope)) / np.sqrt(2 * _PI * width**2)
        return {self._period // 2**j: _average(spectrum, 2**j, self._period // STEP) for j in range(SCALES)}


def _average(spectrum: npt.NDArray[np.float64], coarser: int, points: int) -> npt.NDArray[np.complex64]:
    """Return the matrix that averages moduli along one dimension, with a filter of the given `spectrum`.

    The resolution of the moduli is the image's divided by `coarser`.  Of `points` evenly spaced points of a padded
    image the first and the last are left out, so the matrix has `points` - 2 rows, one average for each other point.
    """
    whole = len(spectrum)
    kept = spectrum.copy()
    if coarser > 1:
        kept[whole // (2 * coarser) : whole - whole // (2 * coarser)] = 0
    size = whole // coarser
    filtered = np.diag(kept.reshape(coarser, size).sum(0)) @ fft.fft(np.eye(size), axis=0)
    folded = filtered.reshape(size // points, points, size).mean(0)
    return np.asarray(fft.ifft(folded, axis=0)[1:-1], np.complex64)


def _morlet(period: int, width: float, angle: float, frequency: float) -> Filters:
    """Return the spectrum of a Morlet wavelet: a wave under an envelope, minus a multiple of the envelope, so that the
    mean is 0.  The arguments are those of `_gabor`.
    """
    wave, envelope = _gabor(period, width, angle, frequency), _gabor(period, width, angle, 0.0)
    return np.asarray(np.real(fft.fft2(wave - wave.sum() / envelope.sum() * envelope)), np.float32)


def _gabor(period: int, width: float, angle: float, frequency: float) -> npt.NDArray[np.complex128]:
    """Return a wave under an elongated Gaussian envelope, on an image of `period` x `period` pixels that repeats.

    The envelope's integral is about 1.  `width` is its standard deviation along the wave, in pixels.  The wave runs in
    the direction `angle`, in radians, and its phase grows by `frequency` radians a pixel.
    """
    slant = 4.0 / ANGLES
    wrapped = np.zeros((period, period), np.complex128)
    for down in _WRAPS:
        for right in _WRAPS:
            x, y = np.mgrid[down * period : (down + 1) * period, right * period : (right + 1) * period]
            along, across = x * np.cos(angle) + y * np.sin(angle), -x * np.sin(angle) + y * np.cos(angle)
            wrapped += np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2) + 1j * frequency * along)
    return wrapped * slant / (2 * _PI * width**2)


def _halve(spectrum: npt.NDArray[np.complex64]) -> npt.NDArray[np.complex64]:
    """Return the spectrum of an image at half resolution (every second point), from the spectrum of the image."""
    rows, columns = spectrum.shape[-2] // 2, spectrum.shape[-1] // 2
    folded = spectrum[..., :rows, :] + spectrum[..., rows:, :]
    halved = folded[..., :columns] + folded[..., columns:]
    halved *= np.float32(0.25)
    return halved


Features = npt.NDArray[np.float32]

DRAWN = 4000
"""Number of synthetic images from which centre and matrix of the whitening are computed."""
LENGTH = 5.0
"""Norm of the features of an image."""
_SEED = 1
_BATCH = 256


@dataclass(frozen=True)
class Whitening:
    """The whitening of features: subtract `centre`, multiply by `matrix`, and scale to the norm `LENGTH`.

    The matrix scales down the directions in which features of synthetic images have a large variance.
    """

    centre: Features
    matrix: Features

    @classmethod
    def from_features(cls, features: Features, ridge: float) -> "Whitening":
        """Return the whitening by the mean of `features` and the matrix (C + ridge * mean eigenvalue of C * I)^-1/2.

        C is the covariance of `features`.
        """
        centre = features.mean(0)
        values, vectors = np.linalg.eigh(np.cov(features - centre, rowvar=False).astype(np.float64))
        scale = 1 / np.sqrt(np.maximum(values, 0) + ridge * values.mean())
        return cls(centre, ((vectors * scale) @ vectors.T).astype(np.float32))

    def __call__(self, features: Features) -> Features:
        """Return the features, centred, whitened and scaled to the norm `LENGTH`."""
        whitened = (features - self.centre) @ self.matrix
        lengths = np.maximum(np.linalg.norm(whitened, axis=1, keepdims=True), 1e-12)
        return np.asarray(whitened * (LENGTH / lengths), np.float32)


def scatter_images(images: npt.NDArray[np.floating]) -> Features:
    """Return the features of grey images (count, size, size), or colour images (count, 3, size, size), in 0..1.

    An image of 28 x 28 has 729 features, one of 3 x 32 x 32 has 1,840.
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
    return _compress(pool_maps(transform.maps(images), 3), transform.orders)


def _colour(images: Images) -> Features:
    """Return the features of colour images before whitening, averaged over each image and its mirror image.

    The features are made from the maps of the brightness up to order 2, and of two colour differences up to order 1.
    """
    return np.asarray((_one_side(images) + _one_side(images[..., ::-1])) / 2, np.float32)


def _one_side(images: Images) -> Features:
    red, green, blue = images[:, 0], images[:, 1], images[:, 2]
    bright = 0.299 * red + 0.587 * green + 0.114 * blue
    whole, plain = Scattering(images.shape[-1]), Scattering(images.shape[-1], order=1)
    parts = [_compress(pool_maps(whole.maps(bright), 4), whole.orders)]
    parts += [_compress(pool_maps(plain.maps(chroma), 4), plain.orders) for chroma in (blue - bright, red - bright)]
    return np.concatenate(parts, axis=1)


def pool_maps(maps: Maps, cells: int) -> Maps:
    """Return averages of each map over a grid of `cells` x `cells`; cells overlap if points do not divide evenly."""
    points = maps.shape[-1]
    rows = np.zeros((cells, points), np.float32)
    for cell in range(cells):
        part = slice(cell * points // cells, -(-(cell + 1) * points // cells))
        rows[cell, part] = 1 / (part.stop - part.start)
    return np.asarray(rows @ maps @ rows.T, np.float32)


def _compress(maps: Maps, orders: Sequence[int]) -> Features:
    """Return signed square roots of the maps, one row for each image, scaled to norm 1 separately for each order.

    `maps` has the maps of an image along axis 1, by order; `orders` is the number of maps of each order.
    """
    rooted = np.sign(maps) * np.sqrt(np.abs(maps))
    parts, start = [], 0
    for count in orders:
        part = rooted[:, start : start + count].reshape(len(maps), -1)
        parts.append(part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-6))
        start += count
    return np.concatenate(parts, axis=1)


@lru_cache(maxsize=4)
def _whitening_grey(size: int) -> Whitening:
    return Whitening.from_features(_in_batches(strokes(DRAWN, size, _SEED), _grey), ridge=0.3)


@lru_cache(maxsize=4)
def _whitening_colour(size: int) -> Whitening:
    return Whitening.from_features(_in_batches(dead_leaves(DRAWN, size, _SEED), _colour), ridge=0.1)


_PEN = (0.9, 1.7)  # half the width of a stroke, in pixels of an image of 28
_REACH = 8.5  # largest distance of strokes from the middle, in the same pixels
_LEAVES = 40
_COLOURS = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [0.5, -1.0, 0.5]]) / np.sqrt([[3.0], [2.0], [1.5]])
_SPREAD = np.array([0.27, 0.09, 0.04])  # deviations of brightness and two colour axes: nature is mostly greyish


def strokes(count: int, size: int, seed: int) -> Features:
    """Return `count` random images, (count, size, size) in 0..1: curved white strokes, about as large as digits."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) * np.float32(28 / size)
    return np.stack([_draw_strokes(x, y, rng) for _ in range(count)])


def _draw_strokes(x: Features, y: Features, rng: np.random.Generator) -> Features:
    t = np.linspace(0, 1, 30)[:, None]
    bends = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3]
    curves = np.concatenate([sum(bend * rng.uniform(-1, 1, 2) for bend in bends) for _ in range(rng.integers(1, 4))])
    low, high = curves.min(0), curves.max(0)
    points = (14 + _REACH * (2 * curves - low - high) / max(high - low)).astype(np.float32)
    squared = (x[..., None] - points[:, 0]) ** 2 + (y[..., None] - points[:, 1]) ** 2
    return np.asarray(np.clip(rng.uniform(*_PEN) + 0.5 - np.sqrt(squared.min(-1)), 0, 1), np.float32)


def dead_leaves(count: int, size: int, seed: int) -> Features:
    """Return `count` random colour images, (count, 3, size, size) in 0..1: shaded ellipses that cover each other."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    return np.stack([_draw_leaves(x, y, size, rng) for _ in range(count)])


def _draw_leaves(x: Features, y: Features, size: int, rng: np.random.Generator) -> Features:
    image = np.broadcast_to(_draw_colour(rng)[:, None, None], (3, *x.shape)).astype(np.float32)
    for _ in range(_LEAVES):
        radius = size * 0.05 / rng.uniform(0.03, 1.0) ** 0.7
        centre, angle, flat = rng.uniform(0, size, 2), rng.uniform(0, np.pi), rng.uniform(0.4, 1.0)
        along = (x - centre[0]) * np.cos(angle) + (y - centre[1]) * np.sin(angle)
        across = (y - centre[1]) * np.cos(angle) - (x - centre[0]) * np.sin(angle)
        covered = np.clip(radius - np.hypot(along, across / flat) + 0.5, 0, 1)
        shade = rng.normal(0, 0.1) * along / max(radius, 1.0)
        image = image * (1 - covered) + (_draw_colour(rng)[:, None, None] + shade) * covered
    return np.clip(image, 0, 1).astype(np.float32)


def _draw_colour(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return np.asarray(0.48 + (rng.normal(0, 1, 3) * _SPREAD * np.sqrt(3)) @ _COLOURS)
