"""What a client is promised of a round before it trains, and what the parameters of the round must keep of it."""

import math
from fractions import Fraction

import msgspec

from dordis.errors import ParametersRefused
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.protocols.costs import round_cost
from dordis.protocols.parameters import Parameters


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
    cost: float
    """The most that the round costs a client, as `round_cost` counts it; infinite where nothing is proved."""

    @classmethod
    def of(cls, parameters: Parameters, kind: type[Mechanism] | None = None) -> "Terms":
        """Return the terms that parameters keep; `kind` is needed where the mechanism does not come with dordis."""
        return parameters.once(("terms", kind), lambda: cls._read(parameters, kind))

    @classmethod
    def _read(cls, parameters: Parameters, kind: type[Mechanism] | None) -> "Terms":
        return cls(
            mode=parameters.mode,
            clients=len(parameters.clients),
            colluders=parameters.colluders,
            bits=parameters.bits,
            mechanism=parameters.encoding.mechanism,
            scheme=parameters.scheme,
            clip=parameters.encoding.clip,
            cost=round_cost(parameters, kind).theta_squared,
        )

    def promised(self, clients: int, cost: float) -> "Terms":
        """Return the terms of rounds of at least so many clients that cost no more than this."""
        return msgspec.structs.replace(self, clients=clients, cost=cost)

    @property
    def ratio(self) -> Fraction:
        """Return the noise variance over the squared sensitivity that one release of the round has at most.

        A round has two releases at most, so that one of them costs half of it or more; how much exactly, only the
        parameters tell.
        """
        return Fraction(1, 2) if math.isinf(self.cost) else Fraction(1, 2) + 2 / Fraction(self.cost)


def check_terms(terms: Terms) -> None:
    """What a round costs is a number."""
    if not terms.cost > 0:
        raise ParametersRefused("an invitation says what the round costs: a number above 0")


def check_terms_kept(promised: Terms, kept: Terms) -> None:
    """The parameters of a round keep what its invitation promised."""
    same = all(getattr(promised, name) == getattr(kept, name) for name in ("mode", "mechanism", "scheme", "clip"))
    enough = kept.clients >= promised.clients and kept.colluders >= promised.colluders
    if not (same and enough and kept.bits <= promised.bits and kept.cost <= promised.cost):
        raise ParametersRefused("the parameters of the round are not what its invitation promised")
