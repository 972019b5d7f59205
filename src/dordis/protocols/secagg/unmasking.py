"""Recovery of secrets from shares, and removal of masks from the sum.

The dealer of a share is the client whose secret was shared; its holder is the client that keeps the share.  Only shares
with the hash that their dealer sent are used.  Each recovered secret is compared with the dealer's commitment.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.crypto.suite import ShareDecoder, Shares, Suite
from dordis.errors import SharingError
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg import masking
from dordis.protocols.vector_backend import LOCAL, Vectors

Fits = npt.NDArray[np.bool_]
IsRight = Callable[[ClientId, int, bytes], bool]
"""Tells whether a dealer committed to a secret; takes the dealer, the secret's index (see `recover`), the secret."""


@dataclass(frozen=True)
class DisclosedShares:
    """The shares that one client disclosed: an array of shape (dealers, secrets of each dealer, limbs of a share).

    `fits` says for each share whether its hash is the one that its dealer sent.
    """

    dealers: tuple[ClientId, ...]
    shares: Shares = field(repr=False)
    fits: Fits

    def select_dealers(self, dealers: Sequence[ClientId]) -> tuple[Shares, Fits]:
        """Return the shares of the given dealers, in this order, and which of these shares have the right hash."""
        if tuple(dealers) == self.dealers:
            return self.shares, self.fits
        places = {u: i for i, u in enumerate(self.dealers)}
        chosen = [places[u] for u in dealers]
        return self.shares[chosen], self.fits[chosen]


@dataclass(frozen=True)
class RecoveredSecrets:
    """The recovered secrets by dealer and index, and the dealers of secrets that could not be recovered.

    A share fits if its hash is right; t is the threshold.  `false` has the dealers that lied: a secret rebuilt from t
    fitting shares contradicts the dealer's commitment.  `short` has the dealers of secrets with fewer than t fitting
    shares, and for each dealer the number of fitting shares of one such secret.
    """

    secrets: dict[ClientId, dict[int, bytes]] = field(repr=False)
    false: frozenset[ClientId]
    short: dict[ClientId, int]


def recover(
    suite: Suite,
    parameters: CohortParameters,
    held: Mapping[ClientId, DisclosedShares],
    dealers: Sequence[ClientId],
    is_right: IsRight,
) -> RecoveredSecrets:
    """Return the dealers' secrets, rebuilt from the shares in `held`, which their neighbourhoods disclosed.

    Shares with a wrong hash are ignored; a secret is rebuilt if at least as many shares as the threshold remain, and is
    returned if `is_right` accepts it.  The index of a secret is its place, from 0, among the dealer's secrets in
    `held`.
    """
    secrets: dict[ClientId, dict[int, bytes]] = {u: {} for u in dealers}
    false: set[ClientId] = set()
    short: dict[ClientId, int] = {}
    for holders, group in _by_holders(parameters, held, dealers).items():
        given = [held[v].select_dealers(group) for v in holders]
        for rows, owners, shares in _by_fitting(given, group):
            if len(rows) < parameters.threshold:
                short |= {u: len(rows) for u, _ in owners}
                continue
            points = [parameters.point(holders[row]) for row in rows[: parameters.threshold]]
            combined = _combine(suite.sharing.Interpolation(points, parameters.threshold), shares[: len(points)])
            for (u, place), secret in zip(owners, combined, strict=True):
                if secret is not None and is_right(u, place, secret):
                    secrets[u][place] = secret
                else:
                    false.add(u)
    return RecoveredSecrets(secrets, frozenset(false), short)


def _by_holders(
    parameters: CohortParameters, held: Mapping[ClientId, DisclosedShares], dealers: Sequence[ClientId]
) -> dict[tuple[ClientId, ...], list[ClientId]]:
    """Return the dealers, grouped by the holders that disclosed their shares; the complete graph has one group."""
    groups: dict[tuple[ClientId, ...], list[ClientId]] = defaultdict(list)
    answered = held.keys()
    everyone = tuple(sorted(answered))
    for u in dealers:
        neighbourhood = parameters.neighbourhoods[u]
        groups[everyone if parameters.degree == 0 else tuple(sorted(neighbourhood & answered))].append(u)
    return groups


def _by_fitting(
    given: Sequence[tuple[Shares, Fits]], dealers: Sequence[ClientId]
) -> Iterator[tuple[list[int], list[tuple[ClientId, int]], Shares]]:
    """Group secrets by the holders that disclosed right shares of them; yield each group: holders, secrets, shares.

    `given` has the shares of each holder.  A share is right if it has the hash that its dealer sent.  A holder is
    yielded as its index in `given`, a secret as its dealer and its index among the dealer's secrets.
    """
    if not given:
        yield [], [(u, 0) for u in dealers], np.empty(0, np.uint32)
        return
    shares, fits = (np.stack(parts) for parts in zip(*given, strict=True))
    owners = [(u, place) for u in dealers for place in range(shares.shape[2])]
    shares, fits = shares.reshape(len(given), len(owners), shares.shape[3]), fits.reshape(len(given), len(owners))
    groups: dict[bytes, list[int]] = defaultdict(list)
    for column in range(len(owners)):
        groups[fits[:, column].tobytes()].append(column)
    for columns in groups.values():
        rows = np.flatnonzero(fits[:, columns[0]])
        yield rows.tolist(), [owners[column] for column in columns], shares[rows][:, columns]


def _combine(interpolation: ShareDecoder, shares: Shares) -> tuple[bytes | None, ...]:
    """Return the secrets of shares of shape (threshold, secrets, limbs); None for shares that give no valid secret."""
    try:
        return interpolation.combine(shares)
    except SharingError:
        if shares.shape[1] == 1:
            return (None,)
    one_by_one = (_combine(interpolation, shares[:, [column]]) for column in range(shares.shape[1]))
    return tuple(secret for (secret,) in one_by_one)


def remove_masks(
    suite: Suite,
    total: Vector,
    parameters: CohortParameters,
    chunk: int,
    lost_keys: Mapping[ClientId, bytes],
    self_masks: Mapping[ClientId, bytes],
    survivors: Mapping[ClientId, bytes],
    vectors: Vectors = LOCAL,
) -> None:
    """Remove from `total` the survivors' self-masks, and the masks that survivors share with dropouts.

    `lost_keys` has the private masking keys of dropouts, `self_masks` the self-mask seeds of survivors, and `survivors`
    the public masking keys of survivors.
    """
    added: list[Any] = []
    subtracted = [masking.self_mask(suite, parameters, chunk, u, seed) for u, seed in self_masks.items()]
    for lost, private in lost_keys.items():
        for u in sorted(parameters.neighbourhoods[lost] & survivors.keys()):
            mask = masking.pair_mask(suite, parameters, chunk, (u, lost), private, survivors[u])
            (subtracted if u < lost else added).append(mask)
    vectors.add_masks(suite, total, added, subtracted, parameters.bits)
