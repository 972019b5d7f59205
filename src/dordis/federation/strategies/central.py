"""Central privacy, a baseline: a trusted server adds the noise."""

from typing import ClassVar

from dordis.federation.strategies.strategy import Strategy


class Central(Strategy, frozen=True, tag="central"):
    """Trust the server, who adds Gaussian noise to the sum."""

    mechanism: ClassVar[str] = "central-gaussian"
    words: ClassVar[str] = "the server adds the noise to the sum. Dropout takes none of it away."
