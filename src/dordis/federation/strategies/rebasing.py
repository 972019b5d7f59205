"""Rebasing, a baseline for its cost: clients send their noise again once it is known who dropped out."""

from typing import ClassVar

from dordis.federation.strategies.strategy import Rule, Strategy
from dordis.kernels.packing import packed_size
from dordis.privacy.encoding import Grid
from dordis.privacy.xnoise import Scheme


class Rebasing(Strategy, frozen=True, tag="rebasing"):
    """Send the noise again once it is known who dropped: only its cost is simulated, the noise is that of `xnoise`."""

    rule: ClassVar[Rule] = Rule.NOTHING
    words: ClassVar[str] = (
        "clients send their noise again once it is known who dropped; simulated is what that costs, with the noise of "
        "xnoise in the sums."
    )
    unproved: ClassVar[str] = (
        "Rebasing is here for its cost only. Whoever sees the noise that a client sends again learns about the noise "
        "that it sent first, so that less of it counts; no epsilon is proved for it. What the records hold is that of "
        "the noise which stands in for it."
    )
    cost_only: ClassVar[bool] = True

    @property
    def division(self) -> Scheme:
        """Return that of `xnoise`."""
        return Scheme.SINGLE

    def costs(self, grid: Grid, survivors: int) -> dict[str, float]:
        """Return the bytes of a second upload of each survivor."""
        return {"rebasing_bytes": float(survivors * packed_size(grid.padded, grid.bits))}
