"""What the server rebuilds from shares: secrets, checked against their commitments, and the masks made from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dordis.crypto import prg, sharing
from dordis.errors import SharingError, Unrecoverable
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import masking

Pairs = frozenset[tuple[int, int]]


def recover(
    parameters: Parameters,
    holders: Sequence[ClientId],
    dealers: Sequence[ClientId],
    shares: sharing.Shares,
    is_right: Callable[[ClientId, bytes], bool],
) -> tuple[dict[ClientId, bytes], Pairs]:
    """Rebuild one secret of each dealer from shares of shape (holders, dealers, 9).

    Up to floor((answers - t) / 2) wrong shares of a secret are corrected; beyond that the chunk fails.
    """
    interpolation = sharing.Interpolation([parameters.point(v) for v in holders], parameters.threshold)
    try:
        recovered = interpolation.combine_robust(shares)
    except SharingError as error:
        dealer = dealers[error.secret or 0]
        raise Unrecoverable(f"the shares of client {dealer} are too damaged", _pairs(dealer, holders)) from None
    for dealer, secret in zip(dealers, recovered.secrets, strict=True):
        if not is_right(dealer, secret):
            raise Unrecoverable(f"client {dealer} shared other secrets than it promised", _pairs(dealer, holders))
    blame = frozenset(
        (dealer, parameters.clients[point - 1])
        for dealer, wrong in zip(dealers, recovered.wrong, strict=True)
        for point in wrong
    )
    return dict(zip(dealers, recovered.secrets, strict=True)), blame


@dataclass(frozen=True)
class Found:
    """Seeds that could be rebuilt, by owner and component, and the pairs with a wrong share."""

    secrets: dict[tuple[ClientId, int], bytes] = field(repr=False)
    blame: Pairs


def recover_each(
    parameters: Parameters,
    answers: Mapping[ClientId, sharing.Shares],
    wanted: Sequence[tuple[ClientId, int]],
    is_right: Callable[[ClientId, int, bytes], bool],
) -> Found:
    """Rebuild each seed on its own, as far as the answers allow; every answer holds the shares in that order."""
    secrets: dict[tuple[ClientId, int], bytes] = {}
    blame: set[tuple[int, int]] = set()
    holders = sorted(answers)
    if len(holders) < parameters.threshold:
        return Found({}, frozenset())
    for place, (dealer, component) in enumerate(wanted):
        shares = np.stack([answers[v][place : place + 1] for v in holders])
        try:
            one, wrong = recover(parameters, holders, [dealer], shares, partial(_is_right, is_right, component))
        except Unrecoverable as failure:
            blame |= failure.blame
            continue
        secrets[dealer, component] = one[dealer]
        blame |= wrong
    return Found(secrets, frozenset(blame))


def _is_right(check: Callable[[ClientId, int, bytes], bool], component: int, dealer: ClientId, secret: bytes) -> bool:
    return check(dealer, component, secret)


def remove_masks(
    total: Vector,
    parameters: Parameters,
    chunk: int,
    lost_keys: Mapping[ClientId, bytes],
    self_masks: Mapping[ClientId, bytes],
    survivors: Mapping[ClientId, bytes],
) -> None:
    """Remove the self-masks of U3, and the masks that each of U3 shares with a lost client.

    `survivors` gives the public masking key of each member of U3.
    """
    added: list[prg.Stream] = []
    subtracted = [masking.self_mask(parameters, chunk, u, seed) for u, seed in self_masks.items()]
    for lost, private in lost_keys.items():
        for u, key in survivors.items():
            mask = masking.pair_mask(parameters, chunk, (u, lost), private, key)
            (subtracted if u < lost else added).append(mask)
    prg.add_masks(total, added, subtracted, parameters.bits)


def _pairs(dealer: ClientId, holders: Sequence[ClientId]) -> Pairs:
    return frozenset((dealer, holder) for holder in holders)
