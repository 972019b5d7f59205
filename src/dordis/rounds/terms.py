"""Terms: the promises of an invitation, made before a client trains; the parameters of the round must keep them."""

import math
from fractions import Fraction

import msgspec
from msgspec import UNSET, UnsetType

from dordis.errors import ParametersRefused
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.privacy.records.encoding import RecordEncoding
from dordis.protocols.costs import round_cost
from dordis.protocols.parameters import Parameters

_SAME = ("mode", "mechanism", "scheme", "clip", "records", "further")


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
    records: RecordEncoding | UnsetType = UNSET
    """How records are sampled and encoded, where they are the unit of privacy: the cost is then that of a sample."""
    further: tuple[str, ...] | UnsetType = UNSET
    """Names of the values that the application releases beside the update; left out if there are none."""

    @classmethod
    def from_parameters(cls, parameters: Parameters, kind: type[Mechanism] | None = None) -> "Terms":
        """Return the terms that parameters keep; `kind` is needed where the mechanism does not come with dordis."""
        return parameters.once(("terms", kind), lambda: cls._read(parameters, kind))

    @classmethod
    def _read(cls, parameters: Parameters, kind: type[Mechanism] | None) -> "Terms":
        return cls(
            mode=parameters.mode,
            clients=parameters.cohort,
            colluders=parameters.colluders,
            bits=parameters.bits,
            mechanism=parameters.encoding.mechanism,
            scheme=parameters.scheme,
            clip=parameters.encoding.clip,
            cost=round_cost(parameters, kind).theta_squared,
            records=parameters.encoding.records,
            further=tuple(release.name for release in parameters.encoding.further or ()) or UNSET,
        )

    def promised(self, clients: int, cost: float) -> "Terms":
        """Return the terms of rounds with at least `least` clients and at most this cost."""
        return msgspec.structs.replace(self, clients=clients, cost=cost)

    @property
    def ratio(self) -> Fraction:
        """Return the noise variance over the squared sensitivity that one release of the round has at most.

        A round has the update, a clipping bit at most, and what the application releases, so that one of these costs
        its part of the whole or more; how much exactly, only the parameters tell.
        """
        releases = 2 + len(self.further or ())
        return Fraction(1, 2) if math.isinf(self.cost) else Fraction(1, 2) + releases / Fraction(self.cost)


def check_terms(terms: Terms) -> None:
    """The cost of a round is a number."""
    if not terms.cost > 0:
        raise ParametersRefused("an invitation says what the round costs: a number above 0")


def check_terms_kept(promised: Terms, kept: Terms) -> None:
    """The parameters of a round keep what its invitation promised."""
    same = all(getattr(promised, name) == getattr(kept, name) for name in _SAME)
    enough = kept.clients >= promised.clients and kept.colluders >= promised.colluders
    if not (same and enough and kept.bits <= promised.bits and kept.cost <= promised.cost):
        raise ParametersRefused("the parameters of the round are not what its invitation promised")
