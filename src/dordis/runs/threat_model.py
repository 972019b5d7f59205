"""What the rounds of a run withstand: servers and colluders (threat model), and dropout (tolerance T, threshold t)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from dordis.errors import InputError, RoundFailed, TooFewClients, TooManyDropouts
from dordis.privacy.advice import RATES
from dordis.privacy.setting import Setting, default_threshold
from dordis.protocols import parameters as rules
from dordis.protocols import sparse_graph
from dordis.protocols.cohort import agree_with_cohort
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.summing import WriteParameters
from dordis.runs.retry import TRIES
from dordis.selection.colluders import largest_draw_failure


@dataclass(frozen=True)
class ThreatModel:
    """Threat model, graph and selection method, the same for all rounds of a run."""

    mode: str = rules.MALICIOUS
    sparse: bool = False
    """Whether each client shares masks and secrets with its neighbours in a graph only, as in SecAgg+."""
    drawn: bool = False
    """Whether public randomness selects the clients, by VRF or permutation.

    T_C is then a quantile of the number of colluders in a round; `draw_failure` bounds the chance of more colluders.
    """
    tries: int = TRIES
    """Planned number of tries of every round, each under another index."""
    agree: WriteParameters = agree_with_cohort
    """Function that adds the parameters of the run's protocol to the parameters that all protocols have in common."""
    has_cohort: bool = True
    """Whether the list of clients U is fixed before the sum."""
    is_open: bool = False
    """Whether any registered client may contribute; then only the client's own count bounds its participations."""
    all_colluders: int | None = None
    """Largest number of colluders in the registry, for judging helpers' complaints in a run; if None, T_C is used."""

    @property
    def draw_failure(self) -> Fraction:
        """Return a bound on the chance that one round draws more than T_C colluders; 0 unless clients are `drawn`."""
        return largest_draw_failure() if self.drawn else Fraction(0)

    @property
    def round_failure(self) -> Fraction:
        """Return a bound on the chance that a round has an insecure graph or more than T_C colluders."""
        return self.draw_failure + (sparse_graph.failure(self.mode) if self.sparse else Fraction(0))

    def indices(self, rounds: int) -> int:
        """Return the number of round indices that are planned for a run of `rounds` rounds, with all its tries."""
        return self.tries * rounds

    def failure(self, rounds: int) -> float:
        """Return a bound on the chance of an insecure graph or too many colluders in any try of `rounds` rounds."""
        return float(self.indices(rounds) * self.round_failure)


@dataclass(frozen=True)
class DropoutNeeds:
    """The tolerance and threshold that rounds need if `dropped` of their `clients` leave before their upload.

    `threshold` is None if every threshold that is low enough for the dropouts is too low to be safe in the run's mode.
    """

    clients: int
    dropped: int
    threshold: int | None
    least: int
    """The least threshold against a malicious server: any two sets of this size have an honest client in common."""
    sparse: bool = False
    colluders: int = 0

    @property
    def threshold_word(self) -> str:
        """Return the threshold or "impossible", for a table; empty for a sparse graph, which has its own thresholds."""
        return "" if self.sparse else "impossible" if self.threshold is None else str(self.threshold)

    @property
    def short(self) -> str:
        """Return tolerance and threshold in a few words, or "impossible"."""
        if self.threshold is None:
            return "impossible"
        tolerance = f"tolerance {self.dropped}"
        return tolerance if self.sparse else f"{tolerance}, threshold {self.threshold}"

    def __str__(self) -> str:
        lost = f"to lose {self.dropped} of {self.clients} clients before their upload"
        if self.threshold is not None:
            threshold = "" if self.sparse else f" and protocol.threshold = {self.threshold}"
            return f"{lost}, set protocol.tolerance = {self.dropped}{threshold}"
        left, fewer = self.clients - self.dropped, f"let at most {self.clients - self.least} drop out"
        if left <= self.colluders:
            return f"{lost} is impossible, because {left} would be left and {self.colluders} may collude: {fewer}"
        most = f"{lost} is impossible against a malicious server, which requires a threshold of {self.least}"
        return (
            f"{most}: set protocol.mode = 'semi-honest', protocol.tolerance = {self.dropped} and "
            f"protocol.threshold = {left}, or {fewer}"
        )


def count_dropouts(clients: int, rate: float | Fraction) -> int:
    """Return floor(rate * clients), computed from the decimal digits of the rate, without rounding errors."""
    if not 0 <= rate < 1:
        raise InputError(f"a dropout rate lies in [0, 1), not {rate}")
    return math.floor(Fraction(str(rate)) * clients)


def find_needs(setting: Setting, mode: str, dropped: int) -> DropoutNeeds:
    """Return tolerance and threshold for `dropped` dropouts.

    The threshold is the default if enough clients remain for it.  Otherwise it is the number of clients that remain,
    or None (no threshold is safe) in the malicious mode, or if all clients that remain may collude.
    """
    n, T_C = setting.clients, setting.colluders
    least = default_threshold(n, T_C)
    t: int | None = least
    if n - dropped < least:
        t = n - dropped if mode != MALICIOUS and n - dropped > T_C else None
    return DropoutNeeds(n, dropped, t, least, setting.sparse, T_C)


def describe_rates(setting: Setting, mode: str, rates: Iterable[Fraction] = RATES[1:]) -> str:
    """Return a text with the tolerance and threshold that each dropout rate needs."""
    found = ((rate, find_needs(setting, mode, count_dropouts(setting.clients, rate))) for rate in rates)
    return "; ".join(f"{float(rate):.0%}: {needs.short}" for rate, needs in found)


def describe_remedy(setting: Setting, mode: str, error: RoundFailed) -> str:
    """Return the tolerance and threshold that a failed round needed, as text; empty if dropout was not the cause."""
    if isinstance(error, TooManyDropouts):
        return str(find_needs(setting, mode, max(error.dropped, setting.T + 1)))
    if isinstance(error, TooFewClients) and 0 < error.answered < setting.clients:
        return str(find_needs(setting, mode, setting.clients - error.answered))
    return ""


def check_survivable(setting: Setting, mode: str, dropped: int) -> None:
    """Raise InputError if tolerance or threshold make a round fail that loses `dropped` clients before their upload."""
    if dropped > setting.T or setting.clients - dropped < setting.t:
        raise InputError(
            f"every round would lose {dropped} of {setting.clients} clients before their upload (simulation.dropout), "
            f"but tolerance {setting.T} and threshold {setting.t} allow {min(setting.T, setting.clients - setting.t)}: "
            f"{find_needs(setting, mode, dropped)}"
        )
