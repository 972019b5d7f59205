"""The scattering transform of images: moduli of Morlet wavelets, averaged, of order two (Bruna and Mallat, 2013).

It is fixed before any data is seen, so it costs no privacy.  With two scales and eight angles an image of 28 x 28 gives
81 maps of 7 x 7.  Filters, padding and order of the maps are those of the package kymatio: tests compare them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import fft

from dordis.errors import InputError

Images = npt.NDArray[np.float32]
Maps = npt.NDArray[np.float32]
Filters = npt.NDArray[np.float32]

SCALES, ANGLES = 2, 8
STEP: int = 2**SCALES
"""Pixels between the points of a map."""
_WIDTH, _FREQUENCY = 0.8, 0.75 * np.pi  # of the finest wavelet: envelope in pixels, radians a pixel
_WRAPS = range(-2, 3)  # copies of an envelope that reach into the period
_BATCH = 4  # images whose moduli fit the cache
_PI = 3.1415  # kymatio divides by this many digits of it


@dataclass(frozen=True)
class Scattering:
    """The transform of images of `size` x `size`, up to an `order` of 1 or 2."""

    size: int
    order: int = 2

    def __post_init__(self) -> None:
        if self.size < 2 * STEP or self.order not in (1, 2):
            raise InputError(f"scattering is for images of {2 * STEP} pixels a side or more, of order 1 or 2")

    @property
    def orders(self) -> tuple[int, ...]:
        """Return how many maps there are of each order, in the order in which they stand."""
        first, second = SCALES * ANGLES, ANGLES * ANGLES * SCALES * (SCALES - 1) // 2
        return (1, first, second)[: self.order + 1]

    def maps(self, images: Images) -> Maps:
        """Return all maps of images of the shape (count, size, size), as (count, maps, points, points)."""
        if images.ndim != 3 or images.shape[1:] != (self.size, self.size):
            raise InputError(f"the images have the shape {images.shape}, not (count, {self.size}, {self.size})")
        batches = [self._batch(images[start : start + _BATCH]) for start in range(0, len(images), _BATCH)]
        return np.concatenate(batches) if batches else np.zeros((0, sum(self.orders), 0, 0), np.float32)

    def _batch(self, images: Images) -> Maps:
        edge = (self._period - self.size) // 2
        padded = np.pad(
            images.astype(np.float32), ((0, 0), (edge, self._period - self.size - edge), (edge, edge)), "reflect"
        )
        spectrum = fft.fft2(padded)[:, None]
        fine, coarse = self._wavelets
        first = np.abs(fft.ifft2(spectrum * fine))
        found = [self._averaged(padded[:, None]), self._averaged(first)]
        found.append(self._averaged(np.abs(fft.ifft2(_halved(spectrum * coarse)))))
        if self.order == 2:
            second = fft.fft2(first)[:, :, None] * coarse
            found.append(self._averaged(np.abs(fft.ifft2(_halved(second))).reshape(len(images), -1, *self._half)))
        return np.concatenate(found, axis=1)

    def _averaged(self, moduli: Maps) -> Maps:
        """Average over neighbourhoods, and keep every fourth point."""
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
        """Return, for moduli at full and at half resolution, the matrix that averages one dimension of them.

        The average is a Gaussian and so the product of one for rows and one for columns.
        """
        points = np.arange(self._period)
        width = _WIDTH * 2 ** (SCALES - 1)
        envelope = sum(np.exp(-((points + wrap * self._period) ** 2) / (2 * width**2)) for wrap in _WRAPS)
        spectrum = np.real(fft.fft(envelope)) / np.sqrt(2 * _PI * width**2)
        return {self._period // 2**j: _average(spectrum, 2**j, self._period // STEP) for j in range(SCALES)}


def _average(spectrum: npt.NDArray[np.float64], coarser: int, points: int) -> npt.NDArray[np.complex64]:
    """Return the matrix that filters a period, seen `coarser` times coarser, and keeps points but the border."""
    whole = len(spectrum)
    kept = spectrum.copy()
    if coarser > 1:
        kept[whole // (2 * coarser) : whole - whole // (2 * coarser)] = 0
    size = whole // coarser
    filtered = np.diag(kept.reshape(coarser, size).sum(0)) @ fft.fft(np.eye(size), axis=0)
    folded = filtered.reshape(size // points, points, size).mean(0)
    return np.asarray(fft.ifft(folded, axis=0)[1:-1], np.complex64)


def _morlet(period: int, width: float, angle: float, frequency: float) -> Filters:
    """Return the spectrum of a wavelet: a wave under an envelope, less as much of the envelope as makes its mean 0."""
    wave, envelope = _gabor(period, width, angle, frequency), _gabor(period, width, angle, 0.0)
    return np.asarray(np.real(fft.fft2(wave - wave.sum() / envelope.sum() * envelope)), np.float32)


def _gabor(period: int, width: float, angle: float, frequency: float) -> npt.NDArray[np.complex128]:
    """Return a wave under an elongated Gaussian envelope, wrapped around the period."""
    slant = 4.0 / ANGLES
    wrapped = np.zeros((period, period), np.complex128)
    for down in _WRAPS:
        for right in _WRAPS:
            x, y = np.mgrid[down * period : (down + 1) * period, right * period : (right + 1) * period]
            along, across = x * np.cos(angle) + y * np.sin(angle), -x * np.sin(angle) + y * np.cos(angle)
            wrapped += np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2) + 1j * frequency * along)
    return wrapped * slant / (2 * _PI * width**2)


def _halved(spectrum: npt.NDArray[np.complex64]) -> npt.NDArray[np.complex64]:
    """Return the spectrum of every second point in both dimensions."""
    rows, columns = spectrum.shape[-2] // 2, spectrum.shape[-1] // 2
    folded = spectrum[..., :rows, :] + spectrum[..., rows:, :]
    halved = folded[..., :columns] + folded[..., columns:]
    halved *= np.float32(0.25)
    return halved
