"""The threat model of a run: which server its rounds withstand, and the chance that a graph or a draw fails."""

from dataclasses import dataclass
from fractions import Fraction

from dordis.protocols import parameters as rules
from dordis.protocols import sparse_graph
from dordis.protocols.cohort import agree_with_cohort
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
    """Whether public randomness selects the clients, by VRF or permutation; T_C is then a quantile of the colluders."""
    tries: int = TRIES
    """How often every round may be tried, each time under another index."""
    agree: WriteParameters = agree_with_cohort
    """Function of the protocol that adds its own part to the common part of the parameters."""
    has_cohort: bool = True
    """Whether the list of clients U is fixed before the sum."""
    is_open: bool = False
    """Whether any registered client may contribute, so that only its own count bounds its participations."""
    all_colluders: int | None = None
    """Largest number of colluders in the registry, by which complaints of a whole run are judged; None: T_C."""

    @property
    def draw_failure(self) -> Fraction:
        """Return a bound on the chance that a round has more than T_C colluders, the number that it withstands."""
        return largest_draw_failure() if self.drawn else Fraction(0)

    @property
    def round_failure(self) -> Fraction:
        """Return a bound on the chance that a round has an insecure graph or more than T_C colluders."""
        return self.draw_failure + (sparse_graph.failure(self.mode) if self.sparse else Fraction(0))

    def indices(self, rounds: int) -> int:
        """Return the number of round indices that a run of `rounds` rounds may use, with all its tries."""
        return self.tries * rounds

    def failure(self, rounds: int) -> float:
        """Return a bound on the chance of an insecure graph or too many colluders in a run of `rounds` rounds."""
        return float(self.indices(rounds) * self.round_failure)
