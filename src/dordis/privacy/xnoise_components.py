"""XNoise: every client adds more noise than needed, and the excess is removed once the dropouts are known.

Noise is divided into *components*, each drawn from a seed of its own; a removable component is removed once its seed is
disclosed.  The components to remove follow from the noise plan, from U3 (the clients whose input arrived) and from
public parameters alone, so that server and clients compute the same.  Variances are exact rationals, rounded up to
multiples of 2^-20.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate

from dordis.errors import InputError, ParametersRefused
from dordis.privacy.skellam_noise import GRID, LARGEST_VARIANCE, round_up_variance

_LONGEST_FRACTION = 64


class Scheme(Enum):
    """How the noise of a round is divided into components."""

    NONE = "none"
    SINGLE = "single"
    """The default: each client adds a base component and one removable component.  After D dropouts, of T tolerated
    ones, the removable components of c (T - D) survivors are removed, with c = `NoisePlan.fraction`."""
    EXACT = "exact"
    """The paper's scheme: each client adds a base component and T removable components.  After D dropouts, of T
    tolerated ones, every survivor's removable components are removed, except for the first D."""
    ORIG = "orig"
    """A baseline: each client adds an even share, as if nobody dropped out."""
    CONSERVATIVE = "conservative"
    """A baseline: each client adds an even share, as if a fixed number of clients dropped out."""


Due = Mapping[int, tuple[int, ...]]
"""The due components: for each survivor, the zero-based indices of the removable components to remove."""


@dataclass(frozen=True)
class NoisePlan:
    """The noise components that each of n clients adds in a round, and the rule by which components are removed.

    `variance` is sigma*^2, the central variance: the noise variance that epsilon is computed from.  `tolerance` is T,
    the largest number of dropouts with which XNoise keeps this variance.  `colluders` is T_C, the number of clients
    whose noise the server may know.  `fraction` is c of the scheme `single`: the removable component has variance v /
    c, where v is the variance of all noise that one client adds.  `reserve` is the number of dropouts for which shares
    of noise are enough in the scheme `conservative`.  Methods take a chunk's survivors U3, and as `context` the result
    of `removal_context` for this chunk.

    >>> plan = NoisePlan(Scheme.SINGLE, clients=10, tolerance=4, colluders=1, variance=Fraction(100))
    >>> plan.charged_variance(range(10), context=b"") == plan.charged_variance(range(6), context=b"") >= 100
    True
    """

    scheme: Scheme
    clients: int
    tolerance: int
    colluders: int
    variance: Fraction
    fraction: int = 0
    reserve: int = 0

    def __post_init__(self) -> None:
        if self.fraction == 0:
            object.__setattr__(self, "fraction", default_fraction(self.clients, self.tolerance))
        self._check()

    def _check(self) -> None:
        n, T, T_C = self.clients, self.tolerance, self.colluders
        if not (0 <= T < n and 0 <= T_C < n - T):
            raise ParametersRefused(f"need 0 <= T and T + T_C < n, not T = {T}, T_C = {T_C}, n = {n}")
        if not 1 <= self.fraction * max(T, 1) <= n:
            raise ParametersRefused(f"need 1 <= c <= n / T, not c = {self.fraction} for n = {n}, T = {T}")
        if not 0 <= self.reserve < n - T_C:
            raise ParametersRefused(f"need 0 <= reserve < n - T_C, not {self.reserve}")
        if self.scheme is Scheme.NONE:
            if self.variance != 0:
                raise ParametersRefused("a plan without noise has variance 0")
        elif self.variance <= 0 or GRID % self.variance.denominator:
            raise ParametersRefused("the central variance must be positive and a multiple of 2^-20")
        if max((*self.base, *self.removable), default=Fraction(0)) > LARGEST_VARIANCE:
            raise ParametersRefused("a noise component exceeds the variance of 10^10: lower the scale")

    def __hash__(self) -> int:
        return hash((self.variance.numerator, self.tolerance, self.clients))

    @property
    def kappa(self) -> Fraction:
        """Return the factor by which XNoise multiplies the central variance: (n - T) / (n - T - T_C).

        So the noise in the sum still has the central variance without the noise of T_C colluders.
        """
        honest = self.clients - self.tolerance - self.colluders
        return Fraction(self.clients - self.tolerance, honest)

    @cached_property
    def base(self) -> tuple[Fraction, ...]:
        """Return a tuple of the variance of the base component, or an empty tuple if there is no base component.

        The seed of the base component is never disclosed.
        """
        n, s = self.clients, self.kappa * self.variance
        match self.scheme:
            case Scheme.NONE:
                variance = Fraction(0)
            case Scheme.SINGLE:
                variance = (self.fraction - 1) * self._unit if self.tolerance else self._unit
            case Scheme.EXACT:
                variance = round_up_variance(s / n)
            case Scheme.ORIG:
                variance = round_up_variance(self.variance / (n - self.colluders))
            case Scheme.CONSERVATIVE:
                variance = round_up_variance(self.variance / (n - self.reserve - self.colluders))
        return (variance,) if variance else ()

    @cached_property
    def removable(self) -> tuple[Fraction, ...]:
        """Return the variances of the removable components, whose seeds the summing protocol can disclose."""
        n, s = self.clients, self.kappa * self.variance
        if self.scheme is Scheme.SINGLE and self.tolerance:
            return (self._unit,)
        if self.scheme is Scheme.EXACT:
            return tuple(round_up_variance(s / ((n - k + 1) * (n - k))) for k in range(1, self.tolerance + 1))
        return ()

    @cached_property
    def _unit(self) -> Fraction:
        """Return v / c of the scheme `single`, rounded up to a multiple of 2^-20; with a tolerance of 0, v rounded up.

        v is the variance of all noise that one client adds.
        """
        v = self.kappa * self.variance / (self.clients - self.tolerance)
        return round_up_variance(v / (self.fraction if self.tolerance else 1))

    @property
    def added_variance(self) -> Fraction:
        """Return the variance of all components that one client adds."""
        return sum((*self.base, *self.removable), Fraction(0))

    def due_components(self, survivors: Collection[int], context: bytes) -> Due:
        """Return, for each of the survivors U3, the indices of its removable components that are due for removal.

        `context` is a result of `removal_context`.  With the scheme `single`, a hash of `context` and of a survivor's
        id decides whether the survivor's component is due.  Raise InputError if a survivor is listed twice, or if there
        are more survivors than clients of the round.
        """
        if len(set(survivors)) != len(survivors) or len(survivors) > self.clients:
            raise InputError(f"a round of {self.clients} clients has at most as many survivors, each listed once")
        excess = self.tolerance - (self.clients - len(survivors))
        if not self.removable or excess <= 0:
            return dict.fromkeys(survivors, ())
        if self.scheme is Scheme.EXACT:
            return dict.fromkeys(survivors, tuple(range(self.tolerance - excess, self.tolerance)))
        chosen = set(sorted(survivors, key=lambda u: _draw_lot(context, u))[: self.fraction * excess])
        return {u: (0,) if u in chosen else () for u in survivors}

    def variance_left(self, survivors: Collection[int], context: bytes, stayed: Due | None = None) -> Fraction:
        """Return the variance of the noise left in the sum; `stayed` lists due components that could not be removed."""
        kept, _ = self._kept_and_charged(survivors, context)
        return kept + sum((self.removable[k] for ks in (stayed or {}).values() for k in ks), Fraction(0))

    def charged_variance(self, survivors: Collection[int], context: bytes) -> Fraction:
        """Return the variance of the noise in the sum that counts for privacy: all but that of T_C survivors.

        T_C survivors may be colluders, so the T_C survivors with most noise in the sum do not count.  A due component
        counts as removed even if the server could not remove it: from t - 1 answers, one fewer than the threshold, and
        from the colluders' shares the server may still rebuild the seed.
        """
        return self._kept_and_charged(survivors, context)[1]

    def reserved_variance(self) -> Fraction:
        """Return the least variance that counts for privacy (`charged_variance`) after at most T dropouts."""
        return self._reserved

    @cached_property
    def _reserved(self) -> Fraction:
        n, T, T_C = self.clients, self.tolerance, self.colluders
        if self.scheme is Scheme.EXACT:  # after D dropouts survivors keep the base and D removable components
            kept = accumulate((*self.base, *self.removable))
            return min((n - D - T_C) * variance for D, variance in enumerate(kept))
        if self.scheme is Scheme.SINGLE and T:
            return (n - T - T_C) * self.fraction * self._unit
        return (n - T - T_C) * self.added_variance

    def _kept_and_charged(self, survivors: Collection[int], context: bytes) -> tuple[Fraction, Fraction]:
        """Return the variance left when all due components are removed, and the part of it that counts for privacy.

        `context` is a result of `removal_context`; `charged_variance` says which part counts.
        """
        due = Counter(self.due_components(survivors, context).values())
        left = {ks: self.added_variance - sum((self.removable[k] for k in ks), Fraction(0)) for ks in due}
        kept, charged, colluders = Fraction(0), Fraction(0), self.colluders
        for ks in sorted(due, key=left.__getitem__, reverse=True):  # the T_C survivors that leave most are not counted
            known = min(colluders, due[ks])
            kept, charged = kept + due[ks] * left[ks], charged + (due[ks] - known) * left[ks]
            colluders -= known
        return kept, charged


def parse_variance(text: str) -> Fraction:
    """Return a variance from its text, a reduced fraction of limited length; raise ParametersRefused otherwise.

    >>> parse_variance("7/1048576")
    Fraction(7, 1048576)
    """
    check_variance_text(text)
    return Fraction(text)


@lru_cache(maxsize=32)  # the server chooses the fields, and a plan may have 1,023 fractions
def read_noise_plan(
    scheme: str, clients: int, tolerance: int, colluders: int, variance: str, fraction: int, reserve: int
) -> NoisePlan:
    """Return the `NoisePlan` with these fields, cached because the chunks of a run have few different plans.

    `variance` is a reduced fraction as text (`parse_variance`).
    """
    return NoisePlan(Scheme(scheme), clients, tolerance, colluders, parse_variance(variance), fraction, reserve)


def check_variance_text(text: str) -> None:
    """Raise ParametersRefused unless the text is a reduced fraction: hashes need one spelling for each variance."""
    if len(text) <= _LONGEST_FRACTION and text.replace("/", "", 1).isdecimal():
        with suppress(ValueError, ZeroDivisionError):
            if str(Fraction(text)) == text:
                return
    raise ParametersRefused("a noise variance is written as a reduced fraction, like 7/1048576")


def default_fraction(clients: int, tolerance: int) -> int:
    """Return the default of `NoisePlan.fraction`: 2 if n >= 2T > 0, else 1, for n clients and tolerance T."""
    return max(1, min(2, clients // tolerance)) if tolerance else 1


def default_tolerance(clients: int, threshold: int, sparse: bool = False) -> int:
    """Return the default T = floor(0.8 (n - t)), for n clients and threshold t; on a sparse graph floor(0.1 n).

    T clients may drop out before their upload.  If T did, n - t - T others may still drop out afterwards; on a sparse
    graph only if every client keeps enough neighbours.
    """
    return clients // 10 if sparse else max(0, 4 * (clients - threshold) // 5)


def removal_context(round_id: bytes, chunk: int, parameter_hash: bytes) -> bytes:
    """Return bytes that identify a chunk, its round and the round's parameters, for `NoisePlan.due_components`."""
    return len(round_id).to_bytes(8, "big") + round_id + chunk.to_bytes(8, "big") + parameter_hash


def _draw_lot(context: bytes, client: int) -> bytes:
    """Return a client's lot, a public pseudorandom number.

    With the scheme `single`, the removable components of the survivors with the lowest lots are removed.
    """
    return hashlib.sha256(b"dordis/v1/removal" + context + client.to_bytes(8, "big")).digest()
