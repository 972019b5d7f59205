"""What a client is promised of a round before it trains, and what the parameters of the round must keep of it."""

from collections.abc import Sequence
from fractions import Fraction

import msgspec

from dordis.errors import ParametersRefused
from dordis.privacy.mechanisms import TABLE
from dordis.privacy.mechanisms.mechanism import NoiseFrom
from dordis.privacy.xnoise import fraction_of
from dordis.protocols.distributed_dp import mechanism_of, releases_of
from dordis.protocols.parameters import Parameters

SLACK = Fraction(9, 10)
"""Part of the planned noise that is promised: cohorts of other sizes round a little differently."""


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on a round, in the order in which an owner's policy reads them."""

    mode: str
    clients: int
    """Least number of clients, n."""
    colluders: int
    """Least T_C."""
    bits: int
    """Most bits a coordinate."""
    mechanism: str
    scheme: str
    clip: float
    """The largest norm of an update."""
    noise: str
    """Least variance of the noise that privacy counts on, over the squared sensitivity, as a fraction."""

    @classmethod
    def of(cls, parameters: Parameters) -> "Terms":
        """Return the terms that parameters keep."""
        return cls(
            mode=parameters.mode,
            clients=len(parameters.clients),
            colluders=parameters.colluders,
            bits=parameters.bits,
            mechanism=parameters.encoding.mechanism,
            scheme=parameters.scheme,
            clip=parameters.encoding.clip,
            noise=str(noise_ratio(parameters)),
        )

    def promised(self, clients: int) -> "Terms":
        """Return terms that rounds of at least so many clients keep, too."""
        return msgspec.structs.replace(self, clients=clients, noise=str(SLACK * self.ratio))

    @property
    def ratio(self) -> Fraction:
        """Return the noise as a number."""
        return fraction_of(self.noise)


def noise_ratio(parameters: Parameters) -> Fraction:
    """Return the least noise of a sum, whoever drops, over what one client can change in it, both squared.

    It is 0 where that is not bounded.
    """
    sums = releases_of(parameters)
    if any(changed.squared <= 0 for changed, _ in sums):
        return Fraction(0)
    return min(least_variance(parameters, chunks) / changed.squared for changed, chunks in sums)


def least_variance(parameters: Parameters, chunks: Sequence[int]) -> Fraction:
    """Return the least noise of some chunks: the protocol's, and what clients bring beside it."""
    plans = {parameters.plans[chunk] for chunk in chunks}
    return min(plan.reserved() for plan in plans) + brought_variance(parameters)


def brought_variance(parameters: Parameters) -> Fraction:
    """Return the least noise that clients bring with a mechanism of dordis; there is none of it on a clipping bit."""
    written, n = parameters.encoding, len(parameters.clients)
    if not written.noise or written.bit or written.mechanism not in TABLE:
        return Fraction(0)
    mechanism = mechanism_of(parameters)
    kept = mechanism.kept(n - parameters.tolerance, n, parameters.colluders)
    return Fraction(0 if mechanism.noise_from is NoiseFrom.SERVER else kept.charged)


def check_terms_kept(promised: Terms, kept: Terms) -> None:
    """The parameters of a round keep what its invitation promised."""
    same = all(getattr(promised, name) == getattr(kept, name) for name in ("mode", "mechanism", "scheme", "clip"))
    enough = kept.clients >= promised.clients and kept.colluders >= promised.colluders
    if not (same and enough and kept.bits <= promised.bits and kept.ratio >= promised.ratio):
        raise ParametersRefused("the parameters of the round are not what its invitation promised")
