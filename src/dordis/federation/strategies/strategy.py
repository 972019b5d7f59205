"""What a noise strategy is: how the noise of a run comes about, what it does about dropout, and what it proves.

A strategy is one tagged struct in one file of this package, and an entry in its table.  The tag is its name.
"""

from enum import Enum
from typing import ClassVar

import msgspec

from dordis.privacy.encoding import Grid
from dordis.privacy.planning import Setting
from dordis.privacy.xnoise import Scheme


class Rule(Enum):
    """What becomes of a run that reaches its budget."""

    STOP = "stop"
    """A round that would pass the budget is not started."""
    COUNT = "count"
    """What is spent is counted, and the rounds go on."""
    NOTHING = "nothing"
    """Nothing is proved, so nothing is counted."""


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A strategy in the configuration: `kind` names it."""

    rule: ClassVar[Rule] = Rule.STOP
    mechanism: ClassVar[str] = ""
    """Name of the mechanism that the strategy brings; if it brings none, clients add planned noise together."""
    words: ClassVar[str] = ""
    """How the noise comes about, and what dropout does to it; may name T and the fields of the strategy in braces."""
    unproved: ClassVar[str] = ""
    """Why nothing is proved, where nothing is."""
    cost_only: ClassVar[bool] = False
    """Whether only the cost is simulated, at ideal fidelity."""

    @property
    def name(self) -> str:
        """Return the name."""
        return str(self.__struct_config__.tag)

    @property
    def division(self) -> Scheme:
        """Return how the noise is divided among the clients."""
        return Scheme.ORIG

    def reserve(self, clients: int) -> int | None:
        """Return the dropouts that the noise provides for; None where it provides for those tolerated, or for none."""
        return None

    def said(self, setting: Setting) -> str:
        """Return the words about a setting."""
        return self.words.format(T=setting.T, **msgspec.structs.asdict(self))

    def costs(self, grid: Grid, survivors: int) -> dict[str, float]:
        """Return what a round would cost on top, where that is only simulated."""
        return {}
