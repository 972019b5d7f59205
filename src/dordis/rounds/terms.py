"""Terms: the promises of an invitation, before a client trains; the parameters of the round must keep them."""

import math
from fractions import Fraction

import msgspec
from msgspec import UNSET, UnsetType

from dordis.errors import ParametersRefused
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.record_encoding import RecordEncoding
from dordis.protocols.costs import round_cost
from dordis.protocols.parameters import Parameters

_SAME = ("mode", "mechanism", "scheme", "clip", "records", "further")


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on a round, in the order in which an owner's policy checks them."""

    mode: str
    clients: int
    """Least number of clients, n."""
    colluders: int
    """Least T_C, the number of colluders of the round that the noise is planned for."""
    bits: int
    """Largest number of bits of a coordinate."""
    mechanism: str
    scheme: str
    clip: float
    """The largest norm of an update."""
    cost: float
    """The largest cost theta^2 of the round for a client (`round_cost`); infinite if no epsilon is proved."""
    records: RecordEncoding | UnsetType = UNSET
    """Sampling and encoding of records, if they are the unit of privacy; the cost is then that of the sampled sum."""
    further: tuple[str, ...] | UnsetType = UNSET
    """Names of the application's further releases; left out if there are none."""

    @classmethod
    def from_parameters(cls, parameters: Parameters, kind: type[Mechanism] | None = None) -> "Terms":
        """Return the terms that parameters keep; `kind` must be given for a third party's mechanism."""
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
        """Return these terms for rounds of at least `clients` clients and at most this cost."""
        return msgspec.structs.replace(self, clients=clients, cost=cost)

    @property
    def ratio(self) -> Fraction:
        """Return an upper bound on the least ratio of noise variance to squared sensitivity of the round's releases.

        A round releases the update, at most a clipping bit, and the application's further values.  The
        costliest of them costs at least the cost divided by their number, which bounds its ratio.  The exact ratio
        follows from the parameters.
        """
        releases = 2 + len(self.further or ())
        return Fraction(1, 2) if math.isinf(self.cost) else Fraction(1, 2) + releases / Fraction(self.cost)


def check_terms(terms: Terms) -> None:
    """Raise ParametersRefused unless the cost in the terms is a number above 0."""
    if not terms.cost > 0:
        raise ParametersRefused("the cost in an invitation is a number above 0")


def check_terms_kept(promised: Terms, kept: Terms) -> None:
    """Raise ParametersRefused unless the parameters of a round keep the terms of its invitation."""
    same = all(getattr(promised, name) == getattr(kept, name) for name in _SAME)
    enough = kept.clients >= promised.clients and kept.colluders >= promised.colluders
    if not (same and enough and kept.bits <= promised.bits and kept.cost <= promised.cost):
        raise ParametersRefused("the parameters of the round are not what its invitation promised")
