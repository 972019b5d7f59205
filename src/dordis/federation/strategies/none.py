"""No noise: what a model learns without privacy."""

from typing import ClassVar

from dordis.federation.strategies.strategy import Rule, Strategy


class NoNoise(Strategy, frozen=True, tag="none"):
    """Add no noise: nothing is proved."""

    rule: ClassVar[Rule] = Rule.NOTHING
    mechanism: ClassVar[str] = "none"
    words: ClassVar[str] = "no noise is added."
    unproved: ClassVar[str] = (
        "No noise was added. Secure aggregation, where it is run, hides single updates; the exact sums, and what they "
        "tell about a client, are open to whoever sees them."
    )
