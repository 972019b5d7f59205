"""Noise strategies: who adds the noise of a run, what dropout does to the noise, and whether an epsilon is proved.

XNoise is the paper's strategy and the default; the others are the paper's baselines.  A strategy is one tagged struct,
whose tag is its name in the configuration, and an entry of `TABLE`.
"""

import math
from enum import Enum
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from dordis.kernels.ring import packed_size
from dordis.privacy.encoding import Grid
from dordis.privacy.setting import Setting
from dordis.privacy.xnoise_components import Scheme


class Rule(Enum):
    """What happens when a run reaches its budget."""

    STOP = "stop"
    """A round that would exceed the budget is not started."""
    COUNT = "count"
    """Spending is counted, and never stops the run."""
    NOTHING = "nothing"
    """Nothing is proved, so nothing is counted."""


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A noise strategy as it is configured; the key `kind` holds its name."""

    mechanism: ClassVar[str] = ""
    """Name of the mechanism that the strategy requires; empty if it uses the configured one, with noise of clients."""
    description: ClassVar[str] = ""
    """Who adds the noise, and what dropout does to it; a format string with {T} and the strategy's fields."""
    unproved: ClassVar[str] = ""
    """Why no epsilon is proved; empty if an epsilon is proved."""
    cost_only: ClassVar[bool] = False
    """Whether the strategy can only be simulated, at ideal fidelity, to learn how many bytes it sends."""

    @property
    def name(self) -> str:
        """Return the name of the strategy, its `kind` in the configuration."""
        return str(self.__struct_config__.tag)

    @property
    def rule(self) -> Rule:
        """Return the rule for a run that reaches its budget."""
        return Rule.STOP

    @property
    def division(self) -> Scheme:
        """Return the scheme by which the noise is divided among the clients."""
        return Scheme.ORIG

    def reserve(self, clients: int) -> int | None:
        """Return how many of a round's `clients` clients may drop out while the others' shares of noise are enough.

        The strategy `conservative` uses this number as `Setting.reserve`; other strategies return None.
        """
        return None

    def describe(self, setting: Setting) -> str:
        """Return a sentence for people on how the strategy divides the noise, with the numbers of this setting."""
        return self.description.format(T=setting.T, **msgspec.structs.asdict(self))

    def costs(self, grid: Grid, survivors: int) -> dict[str, float]:
        """Return, by name, costs of a round, such as bytes, that the strategy would cause but no simulation measures.

        By default there are none.
        """
        return {}


class XNoise(Strategy, frozen=True, tag="xnoise"):
    """Clients add more noise than needed, and the excess is removed: sums have the planned noise despite dropouts."""

    scheme: Literal["single", "exact"] = "single"

    description: ClassVar[str] = (
        "every client adds more noise than is needed, and once it is known who dropped out, the excess is removed "
        "(scheme '{scheme}'). The target holds for any dropouts, up to {T} clients of a round lost before their "
        "upload; a round that loses more ends without an output."
    )

    @property
    def division(self) -> Scheme:
        return Scheme(self.scheme)


class Orig(Strategy, frozen=True, tag="orig"):
    """Every client adds an even share of the noise.  Dropouts leave too little; the run may exceed its budget."""

    description: ClassVar[str] = (
        "every client adds an even share of the noise, as if nobody dropped out. The share of those who do is missing: "
        "the noise falls below its target, and epsilon rises faster than planned, possibly beyond the budget."
    )

    @property
    def rule(self) -> Rule:
        return Rule.COUNT


class Early(Strategy, frozen=True, tag="early"):
    """Every client adds an even share of the noise.  Dropouts leave too little; the run ends before it overspends."""

    description: ClassVar[str] = (
        "every client adds an even share of the noise, as if nobody dropped out. The share of those who do is missing "
        "and epsilon rises faster than planned; the run ends before the round that would pass the budget."
    )


class Conservative(Strategy, frozen=True, tag="conservative"):
    """Every client adds an even share of the noise; the noise suffices if the fraction `rate` of the clients drops out.

    After more dropouts the run ends before it exceeds the budget; with `overspend` it goes on, as Con-r in the paper.
    """

    rate: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2
    overspend: bool = False

    description: ClassVar[str] = (
        "every client adds an even share of the noise, as if {rate:.4g} of the clients dropped out. If fewer do there "
        "is more noise than is needed. If more do the noise falls below its target, epsilon rises faster than planned, "
        "and {ending}."
    )

    @property
    def rule(self) -> Rule:
        return Rule.COUNT if self.overspend else Rule.STOP

    def describe(self, setting: Setting) -> str:
        stops = "the run ends before the round that would pass the budget"
        return self.description.format(rate=self.rate, ending="the run goes on" if self.overspend else stops)

    @property
    def division(self) -> Scheme:
        return Scheme.CONSERVATIVE

    def reserve(self, clients: int) -> int:
        return math.floor(Fraction(str(self.rate)) * clients)


class Rebasing(Strategy, frozen=True, tag="rebasing"):
    """Clients send new noise once the dropouts are known: only its bytes are simulated, with the noise of `xnoise`."""

    description: ClassVar[str] = (
        "clients send new noise once it is known who dropped out. Only the cost is simulated; the sums have the "
        "noise of xnoise."
    )
    unproved: ClassVar[str] = (
        "Rebasing is simulated for its cost only. No epsilon is proved for it: the noise that a client sends again "
        "reveals something about the noise that it sent first. The recorded epsilon is that of xnoise, whose noise "
        "is in the sums."
    )
    cost_only: ClassVar[bool] = True

    @property
    def rule(self) -> Rule:
        return Rule.NOTHING

    @property
    def division(self) -> Scheme:
        return Scheme.SINGLE

    def costs(self, grid: Grid, survivors: int) -> dict[str, float]:
        """Return the bytes of all survivors' second uploads, as `rebasing_bytes`."""
        return {"rebasing_bytes": float(survivors * packed_size(grid.padded, grid.bits))}


class Central(Strategy, frozen=True, tag="central"):
    """The server is trusted, and adds Gaussian noise to the sum."""

    mechanism: ClassVar[str] = "central-gaussian"
    description: ClassVar[str] = "the server adds the noise to the sum. Dropout takes none of it away."


class Local(Strategy, frozen=True, tag="local"):
    """Nobody is trusted: every client adds so much Gaussian noise that its update is protected by this noise alone."""

    mechanism: ClassVar[str] = "local-gaussian"
    description: ClassVar[str] = (
        "every client adds all the noise it needs itself. Dropout does not change its guarantee."
    )


class NoNoise(Strategy, frozen=True, tag="none"):
    """Add no noise: nothing is proved."""

    mechanism: ClassVar[str] = "none"
    description: ClassVar[str] = "no noise is added."
    unproved: ClassVar[str] = (
        "No noise was added. Secure aggregation, if the run uses it, hides single updates. The exact sums are not "
        "hidden, and may reveal data of a client."
    )

    @property
    def rule(self) -> Rule:
        return Rule.NOTHING


TABLE = (XNoise, Orig, Early, Conservative, Rebasing, Central, Local, NoNoise)

if TYPE_CHECKING:
    AnyStrategy = Strategy
else:
    AnyStrategy = reduce(or_, TABLE)
    """Any strategy of the table, to be read from a configuration by its `kind`."""
