"""Ceilings on the size of a round, so that a client refuses oversized messages at little cost.

A message that is too long is refused before it is read, a map with too many entries before its first entry is read, and
parameters above a ceiling before anything is computed from them.  `docs/reference/ceilings.md` explains each ceiling.
"""

from typing import TYPE_CHECKING

from dordis.errors import ParametersRefused
from dordis.privacy.xnoise_components import Scheme

if TYPE_CHECKING:
    from dordis.protocols.parameters import Parameters

MOST_CLIENTS = 1 << 14
MOST_CHUNKS = 1 << 10
MOST_VARIANCES = 1 << 4
MOST_COMPONENTS = 1 << 10
MOST_PLACES = 1 << 22
MOST_DEGREE = 1 << 10
LARGEST_DIM = 1 << 31
LARGEST_FACTOR = 2.0**64
LARGEST_WEIGHT = 1 << 32
LONGEST_NAME = 64
LONGEST_HASH = 64
LONGEST_PROOF = 128
LONGEST_SIGNATURE = 128
LONGEST_OPENING = 3 << 20
LONGEST_INVITE = 1 << 12
LONGEST_REPLAY = 1 << 15
MOST_REPLAYS = 1 << 8
FEW_PIECES, SMALLEST_PIECE = 1 << 8, 1 << 16


def check_ceilings(parameters: "Parameters") -> None:
    """Raise ParametersRefused if a size or number is above its ceiling, before anything is computed from it."""
    encoding = parameters.encoding
    names = (parameters.mode, parameters.scheme, encoding.mechanism, encoding.noise or "")
    hashes = (parameters.tables, parameters.model, parameters.beacon, encoding.rotation)
    for what, size, most in (
        ("clients", parameters.n_max, MOST_CLIENTS),
        ("chunks", max(len(parameters.ends) // 8, len(parameters.variances)), MOST_CHUNKS),
        ("different noise variances", len({*parameters.variances.values()}), MOST_VARIANCES),
        ("characters in a name", max(map(len, names)), LONGEST_NAME),
        ("bytes in a hash or seed", max(map(len, hashes)), LONGEST_HASH),
        *parameters.own_sizes,
    ):
        if size > most:
            raise ParametersRefused(f"a round has at most {most} {what}, not {size}")
    if not (0 <= encoding.clip <= LARGEST_FACTOR and 1 / LARGEST_FACTOR <= encoding.scale <= LARGEST_FACTOR):
        raise ParametersRefused("the scale of a round lies in 2^-64..2^64, its clip bound in 0..2^64")


def check_components(parameters: "Parameters") -> None:
    """Raise ParametersRefused if a round's different noise plans together have over `MOST_COMPONENTS` components."""
    each = 1 + (parameters.tolerance if parameters.scheme == Scheme.EXACT.value else 1)
    components = each * len({*parameters.variances.values()})
    if components > MOST_COMPONENTS:
        raise ParametersRefused(f"a round has at most {MOST_COMPONENTS} components of noise, not {components}")


def check_places(places: int) -> None:
    """Raise ParametersRefused if `places`, the number of entries in a round's noise tables, is above `MOST_PLACES`."""
    if places > MOST_PLACES:
        raise ParametersRefused(f"the noise tables of a round have at most {MOST_PLACES} places: lower the scale")
