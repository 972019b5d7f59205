"""What the server rebuilds from shares: secrets, checked against their commitments, and the masks made from them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dordis.crypto.suite import Shares, Suite
from dordis.errors import SharingError, TooFewClients, Unrecoverable
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import masking
from dordis.protocols.summing import Pairs


@dataclass(frozen=True)
class Held:
    """The shares that one client disclosed, of shape (dealers, secrets of each, 9)."""

    dealers: tuple[ClientId, ...]
    shares: Shares = field(repr=False)

    def shares_of(self, dealers: Sequence[ClientId]) -> Shares:
        """Return the shares of some dealers, in their order."""
        if tuple(dealers) == self.dealers:
            return self.shares
        places = {u: i for i, u in enumerate(self.dealers)}
        return self.shares[[places[u] for u in dealers]]


@dataclass(frozen=True)
class RecoveredSecrets:
    """One secret of each dealer, and the pairs whose share was wrong and was corrected."""

    secrets: dict[ClientId, bytes] = field(repr=False)
    blame: Pairs


def recover(
    suite: Suite,
    parameters: Parameters,
    held: Mapping[ClientId, Held],
    dealers: Sequence[ClientId],
    is_right: Callable[[ClientId, bytes], bool],
) -> RecoveredSecrets:
    """Rebuild one secret of each dealer from what its neighbourhood disclosed.

    Up to floor((answers - t) / 2) wrong shares of a secret are corrected; beyond that the chunk fails.
    """
    secrets: dict[ClientId, bytes] = {}
    blame: set[tuple[int, int]] = set()
    for holders, group in _by_holders(parameters, held, dealers).items():
        shares = np.concatenate([held[v].shares_of(group)[None] for v in holders])[:, :, 0]
        combined, wrong = _combine(suite, parameters, holders, group, shares)
        for dealer, secret in zip(group, combined, strict=True):
            if not is_right(dealer, secret):
                raise Unrecoverable(f"client {dealer} shared other secrets than it promised", _pairs(dealer, holders))
            secrets[dealer] = secret
        blame |= wrong
    return RecoveredSecrets(secrets, frozenset(blame))


def _by_holders(
    parameters: Parameters, held: Mapping[ClientId, Held], dealers: Sequence[ClientId]
) -> dict[tuple[ClientId, ...], list[ClientId]]:
    """Group the dealers whose shares lie with the same clients: on the complete graph that is one group."""
    groups: dict[tuple[ClientId, ...], list[ClientId]] = defaultdict(list)
    answered = held.keys()
    everyone = tuple(sorted(answered))
    for u in dealers:
        neighbourhood = parameters.neighbourhoods[u]
        groups[everyone if parameters.degree == 0 else tuple(sorted(neighbourhood & answered))].append(u)
    for holders in groups:
        if len(holders) < parameters.threshold:
            raise TooFewClients("Unmask", len(holders), parameters.threshold)
    return groups


def _combine(
    suite: Suite, parameters: Parameters, holders: Sequence[ClientId], dealers: Sequence[ClientId], shares: Shares
) -> tuple[tuple[bytes, ...], Pairs]:
    """Rebuild a secret for each dealer from shares of shape (holders, dealers, 9)."""
    interpolation = suite.sharing.Interpolation([parameters.point(v) for v in holders], parameters.threshold)
    try:
        recovered = interpolation.combine_robust(shares)
    except SharingError as error:
        dealer = dealers[error.secret or 0]
        raise Unrecoverable(f"the shares of client {dealer} are too damaged", _pairs(dealer, holders)) from None
    blame = frozenset(
        (dealer, parameters.clients[point - 1])
        for dealer, wrong in zip(dealers, recovered.wrong, strict=True)
        for point in wrong
    )
    return recovered.secrets, blame


def recover_seeds(
    suite: Suite,
    parameters: Parameters,
    held: Mapping[ClientId, Held],
    dealer: ClientId,
    components: Sequence[int],
    is_right: Callable[[int, bytes], bool],
) -> tuple[dict[int, bytes], Pairs]:
    """Rebuild the seeds of one dealer if the answers allow; shares too damaged for one are trusted for none."""
    holders = tuple(sorted(parameters.neighbourhoods[dealer] & held.keys()))
    if len(holders) < parameters.threshold:
        return {}, frozenset()
    shares = np.concatenate([held[v].shares_of([dealer]) for v in holders])
    try:
        seeds, blame = _combine(suite, parameters, holders, [dealer] * len(components), shares)
    except Unrecoverable as failure:
        return {}, failure.blame
    committed = {k: seed for k, seed in zip(components, seeds, strict=True) if is_right(k, seed)}
    return committed, blame if len(committed) == len(components) else _pairs(dealer, holders)


def remove_masks(
    suite: Suite,
    total: Vector,
    parameters: Parameters,
    chunk: int,
    lost_keys: Mapping[ClientId, bytes],
    self_masks: Mapping[ClientId, bytes],
    survivors: Mapping[ClientId, bytes],
) -> None:
    """Remove the self-masks of U3, and the masks that each of U3 shares with a lost neighbour.

    `survivors` gives the public masking key of each member of U3.
    """
    added: list[Any] = []
    subtracted = [masking.self_mask(suite, parameters, chunk, u, seed) for u, seed in self_masks.items()]
    for lost, private in lost_keys.items():
        for u in sorted(parameters.neighbourhoods[lost] & survivors.keys()):
            mask = masking.pair_mask(suite, parameters, chunk, (u, lost), private, survivors[u])
            (subtracted if u < lost else added).append(mask)
    suite.prg.add_masks(total, added, subtracted, parameters.bits)


def _pairs(dealer: ClientId, holders: Sequence[ClientId]) -> Pairs:
    return frozenset((dealer, holder) for holder in holders)
