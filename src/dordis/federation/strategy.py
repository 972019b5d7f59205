"""Noise strategies: ours, the paper's baselines, and what follows from one of them for every round of a run.

A strategy is named in the configuration.  A `Design` is a strategy in a setting: it says what the clients of a round
agree on, what the round costs, and how much noise it kept.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import msgspec

from dordis.errors import InputError
from dordis.federation.charges import Budget, Charge
from dordis.kernels.packing import packed_size
from dordis.privacy import accounting, planning, skellam
from dordis.privacy.accounting import ALL_ROUNDS, Gaussian, Participation, Repeated, gaussian_multiplier
from dordis.privacy.encoding import Grid, chunk_ends
from dordis.privacy.gaussian import CentralGaussian, LocalGaussian
from dordis.privacy.mechanism import DDGauss, DSkellam, Mechanism, NoMechanism
from dordis.privacy.planning import Plan, Setting
from dordis.privacy.xnoise import Scheme
from dordis.protocols import parameters as rules
from dordis.protocols.distributed_dp import encoding_of
from dordis.protocols.neighbourhood import solve
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import ChunkOutput

WIDE = 64.0
"""Standard deviations that the ring holds where nothing has to be proved of it."""
_ROUNDING = 1 + 1e-12  # the ledger computes the multiplier from sigma again: the last bit must not cost a round


class _Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A strategy in the configuration: `kind` names it."""


class XNoise(_Strategy, frozen=True, tag="xnoise"):
    """Add more than is needed, remove what is too much: the target holds, whoever drops."""

    scheme: Literal["single", "exact"] = "single"


class Orig(_Strategy, frozen=True, tag="orig"):
    """Add an even share, as if nobody dropped; the budget is overspent when someone does, and the run goes on."""


class Early(_Strategy, frozen=True, tag="early"):
    """Like `orig`, but stop before the budget is passed."""


class Conservative(_Strategy, frozen=True, tag="conservative"):
    """Add an even share, as if a fixed part of the clients dropped; stop before the budget is passed."""

    rate: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2


class Rebasing(_Strategy, frozen=True, tag="rebasing"):
    """Send the noise again once it is known who dropped: only its cost is simulated, the noise is that of `xnoise`."""


class Central(_Strategy, frozen=True, tag="central"):
    """Trust the server, who adds Gaussian noise to the sum."""


class Local(_Strategy, frozen=True, tag="local"):
    """Trust nobody: every client adds all the Gaussian noise that it needs."""


class NoNoise(_Strategy, frozen=True, tag="none"):
    """Add no noise: nothing is proved."""


Strategy = XNoise | Orig | Early | Conservative | Rebasing | Central | Local | NoNoise
Planned = XNoise | Orig | Early | Conservative | Rebasing
"""Strategies whose noise the clients add together."""


def name_of(strategy: Strategy) -> str:
    """Return the name of a strategy, as the configuration has it."""
    return str(type(strategy).__struct_config__.tag)


class Noise(NamedTuple):
    """Variances in squared integer units, the least of all chunks: planned, in the sum, and counted on by privacy."""

    wanted: float
    left: float
    charged: float


@dataclass(frozen=True)
class Agreement:
    """What all rounds of a run have in common: the server that is guarded against, and the graph."""

    mode: str = rules.MALICIOUS
    sparse: bool = False
    """Whether clients share masks and secrets with some others only: SecAgg+."""


@dataclass(frozen=True)
class Design:
    """A strategy in a setting, for rounds of `setting.clients` clients.

    `make` gives the mechanism of a plan; other mechanisms than Skellam's are named by the configuration.
    """

    strategy: Strategy
    setting: Setting
    epsilon: float
    agreement: Agreement = Agreement()
    make: Callable[[Plan], Mechanism] = DSkellam.of

    def __post_init__(self) -> None:
        scheme = scheme_of(self.strategy)
        if scheme is not self.setting.scheme:
            object.__setattr__(self, "setting", replace(self.setting, scheme=scheme))
        if isinstance(self.strategy, Conservative):
            reserve = math.floor(Fraction(str(self.strategy.rate)) * self.setting.clients)
            object.__setattr__(self, "setting", replace(self.setting, reserve=reserve))

    @cached_property
    def plan(self) -> Plan | None:
        """Return the noise that the clients add together, or None if it is not theirs to add."""
        return planning.plan(self.setting, self.epsilon) if isinstance(self.strategy, Planned) else None

    @cached_property
    def mechanism(self) -> Mechanism:
        """Return how updates are encoded."""
        if self.plan is not None:
            return self.make(self.plan)
        multiplier = calibrated(self.epsilon, self.cap, self.delta)
        clip, n = self.setting.clip, self.setting.clients
        match self.strategy:
            case Central():
                grid = self._grid(multiplier * clip)
                bound = skellam.sensitivity(grid.scale, clip, grid.padded)
                return CentralGaussian(grid, clip, bound.squared, multiplier * bound.l2 / grid.scale)
            case Local():
                return LocalGaussian(self._grid(multiplier * clip * math.sqrt(n)), clip, multiplier * clip)
        return NoMechanism(self._grid(clip))

    def _grid(self, sigma: float) -> Grid:
        """Return a grid of 32 bits that holds noise of this deviation in the sum, with much room."""
        ring = replace(self.setting.ring(skellam.MOST_BITS), headroom=WIDE, largest=math.inf)
        return Grid(self.setting.dim, self.setting.block, skellam.scale_of(ring, sigma), skellam.MOST_BITS)

    @property
    def delta(self) -> float:
        """Return delta."""
        return self.setting.given_delta

    @property
    def cap(self) -> int:
        """Return how many rounds of one client are covered."""
        return self.setting.participation.releases

    @property
    def proves(self) -> bool:
        """Tell whether there is an epsilon; there is none for what is only simulated for its cost."""
        return not isinstance(self.strategy, NoNoise | Rebasing)

    @property
    def budget(self) -> Budget:
        """Return the budget that the ledger keeps to; `orig` is counted and never stopped."""
        return Budget(None if isinstance(self.strategy, Orig) else self.epsilon, self.delta)

    def sized(self, clients: int) -> "Design":
        """Return the same for rounds of so many clients, with as many releases for each; each size is planned once."""
        if clients not in self._sizes:
            self._sizes[clients] = self._resized(clients)
        return self._sizes[clients]

    @cached_property
    def _sizes(self) -> "dict[int, Design]":
        return {self.setting.clients: self}

    def _resized(self, clients: int) -> "Design":
        given = self.setting
        t = self._threshold(clients)
        run = Participation(given.participation.population, clients, self.cap, accounting=ALL_ROUNDS)
        tolerance = min(given.T * clients // given.clients, clients - t)
        return replace(self, setting=replace(given, participation=run, threshold=t, tolerance=tolerance))

    def _threshold(self, clients: int) -> int:
        """Return the threshold for so many clients: in proportion, and above what the colluders need, who stay T_C."""
        given = self.setting
        default = planning.default_threshold(clients, given.colluders)
        usual = planning.default_threshold(given.clients, given.colluders)
        if given.t == usual:
            return default
        scaled = -(-given.t * clients // given.clients)
        return max(scaled, default if given.t > usual else given.colluders + 1)

    def agree_on(
        self,
        *,
        run: bytes,
        index: int,
        clients: Collection[int],
        rotation: bytes,
        model: bytes = b"",
        beacon: bytes = b"",
        chunks: int = 1,
    ) -> Parameters:
        """Write down the parameters of a round."""
        if len(clients) != self.setting.clients:
            raise InputError(f"this design is for {self.setting.clients} clients a round, not for {len(clients)}")
        setting, grid = self.setting, self.mechanism.grid
        noisy = self.plan is not None and setting.scheme in self.mechanism.schemes
        ends = chunk_ends(grid.dim, grid.block, chunks)
        threshold, degree = self._graph()
        return rules.agree_on(
            run=run,
            index=index,
            clients=clients,
            threshold=threshold,
            quorum=setting.t,
            degree=degree,
            tolerance=setting.T,
            colluders=setting.colluders,
            bits=grid.bits,
            ends=ends,
            scheme=setting.scheme if noisy else Scheme.NONE,
            variances=[self.plan.variance] * len(ends) if noisy and self.plan else None,
            fraction=self.plan.noise.fraction if noisy and self.plan else None,
            reserve=self.plan.noise.reserve if noisy and self.plan else 0,
            mode=self.agreement.mode,
            encoding=encoding_of(self.mechanism, rotation),
            model=model,
            beacon=beacon,
        )

    def example(self, chunks: int = 1) -> Parameters:
        """Return the parameters of a round that nobody runs: what breaks a rule breaks it here."""
        clients = range(1, self.setting.clients + 1)
        return self.agree_on(
            run=bytes(32), index=0, clients=clients, rotation=bytes(32), beacon=bytes(32), chunks=chunks
        )

    def _graph(self) -> tuple[int, int]:
        """Return the shares that rebuild a secret, and the degree of the graph."""
        setting = self.setting
        if not self.agreement.sparse:
            return setting.t, 0
        found = solve(setting.clients, setting.T, setting.colluders, self.agreement.mode)
        return found.threshold, found.degree

    def charge(self, parameters: Parameters) -> Charge | None:
        """Return what a round may cost, or None if nothing is proved."""
        return Charge.of(parameters, mechanism=self.mechanism) if self.proves else None

    def noise(self, outputs: Sequence[ChunkOutput]) -> Noise | None:
        """Return the noise that a round kept."""
        if isinstance(self.strategy, NoNoise):
            return None
        return min((self._kept(output) for output in outputs), key=lambda kept: kept.charged)

    def costs(self, outputs: Sequence[ChunkOutput]) -> dict[str, float]:
        """Return what the strategy would cost on top, where that is only simulated: here, a second upload for each."""
        if not isinstance(self.strategy, Rebasing):
            return {}
        grid, survivors = self.mechanism.grid, min(len(output.survivors) for output in outputs)
        return {"rebasing_bytes": float(survivors * packed_size(grid.padded, grid.bits))}

    def _kept(self, output: ChunkOutput) -> Noise:
        count, mechanism = len(output.survivors), self.mechanism
        match mechanism:
            case DDGauss():
                charged = mechanism.charged(count, self.setting.colluders)
                whole = mechanism.charged(self.setting.clients, self.setting.colluders)
                return Noise(float(whole), float(count * mechanism.variance), float(charged))
            case CentralGaussian():
                variance = (mechanism.sigma * mechanism.grid.scale) ** 2
                return Noise(variance, variance, variance)
            case LocalGaussian():
                variance = (mechanism.sigma * mechanism.grid.scale) ** 2
                return Noise(variance * self.setting.clients, variance * count, variance)
        wanted = self.plan.variance if self.plan else Fraction(0)
        return Noise(float(wanted), float(output.left), float(output.charged))


def calibrated(epsilon: float, releases: int, delta: float) -> float:
    """Return the least multiplier of Gaussian noise that keeps a budget as the ledger counts it.

    The ledger adds up Renyi divergences, which costs a little more than the exact figure for Gaussians alone.
    """
    low = gaussian_multiplier(epsilon, releases, delta)
    high = 2 * low
    for _ in range(50):
        middle = (low + high) / 2
        enough = accounting.epsilon(Repeated(Gaussian(middle), releases), delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high * _ROUNDING


def scheme_of(strategy: Strategy) -> Scheme:
    """Return how the protocol divides the noise of a strategy."""
    match strategy:
        case XNoise(scheme):
            return Scheme(scheme)
        case Rebasing():
            return Scheme.SINGLE
        case Conservative():
            return Scheme.CONSERVATIVE
    return Scheme.ORIG
