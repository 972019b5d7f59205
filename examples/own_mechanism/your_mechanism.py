"""A mechanism of your own: updates are halved before they are encoded, and sums doubled; from this folder:

dordis run -c privacy.mechanism=your_mechanism:Halved -c simulation.fidelity=ideal
"""

import secrets
from typing import ClassVar

from dordis.privacy.mechanisms import check_bound
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam


class Halved(DSkellam, frozen=True, tag="halved"):
    """Sum the halves of the updates, and double the decoded mean."""

    description: ClassVar[str] = "Skellam noise on halved updates"

    def __post_init__(self) -> None:
        check_bound(self)

    def encode(self, update, public_seed, entropy=secrets.token_bytes):
        """Encode half of the update."""
        return super().encode(update / 2, public_seed, entropy)

    def decode(self, total, count, public_seed):
        """Return twice the mean."""
        return 2 * super().decode(total, count, public_seed)
