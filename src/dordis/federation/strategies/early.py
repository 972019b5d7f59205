"""Early, a baseline: like Orig, but the run stops at its budget."""

from typing import ClassVar

from dordis.federation.strategies.strategy import Strategy


class Early(Strategy, frozen=True, tag="early"):
    """Like `orig`, but stop before the budget is passed."""

    words: ClassVar[str] = (
        "every client adds an even share of the noise, as if nobody dropped out. The share of those who do is missing "
        "and epsilon rises faster than planned; the run ends before the round that would pass the budget."
    )
