"""Local privacy, a baseline: every client adds the noise that it needs."""

from typing import ClassVar

from dordis.federation.strategies.strategy import Strategy


class Local(Strategy, frozen=True, tag="local"):
    """Trust nobody: every client adds all the Gaussian noise that it needs."""

    mechanism: ClassVar[str] = "local-gaussian"
    words: ClassVar[str] = "every client adds all the noise that it needs itself. Dropout takes none of it away."
