"""The plaintext protocol: a template for authors of protocols, and an oracle for tests of SecAgg.

Clients send their inputs without masks and disclose the due secrets.  It protects nobody.
"""

from dataclasses import dataclass

from dordis.protocol import ClientId, requests_in
from dordis.protocols.cohort import CohortParameters, agree_with_cohort
from dordis.protocols.escrow import Releases
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.plaintext import messages
from dordis.protocols.plaintext.client import PlaintextClient
from dordis.protocols.plaintext.server import PlaintextServer
from dordis.protocols.replies import ensure_enough
from dordis.protocols.summing import Leaving, SummingProtocol

__all__ = ["PLAINTEXT", "PlaintextClient", "PlaintextServer"]

_BEGIN, _CONTRIBUTE, _DISCLOSE = (request.__name__ for request in requests_in(vars(messages)))


@dataclass(frozen=True)
class PlaintextPrediction:
    """The outcome of one plaintext round in which each client leaves at the stage given by `leaving`."""

    parameters: CohortParameters
    leaving: Leaving

    def survivors(self) -> tuple[ClientId, ...]:
        """Return the survivors, U3; raise if too few clients answer the first request."""
        ensure_enough(self.parameters, _BEGIN, self._answering(_BEGIN))
        return self._answering(_BEGIN, _CONTRIBUTE)

    def check_before_disclosure(self) -> None:
        """Raise if too few clients contributed."""
        ensure_enough(self.parameters, _CONTRIBUTE, self._answering(_BEGIN, _CONTRIBUTE))

    def check_after_disclosure(self) -> None:
        """Raise nothing: a secret that its owner does not disclose is not released."""

    def unreleased(self, due: Releases) -> Releases:
        """Return the due secrets of the survivors that leave before they disclose them."""
        return {u: ks for u, ks in due.items() if ks and self.leaving.get(ClientId(u)) == _DISCLOSE}

    def _answering(self, *stages: str) -> tuple[ClientId, ...]:
        return tuple(u for u in self.parameters.clients if self.leaving.get(u) not in stages)


PLAINTEXT = SummingProtocol(
    "plaintext",
    PlaintextServer,
    PlaintextClient,
    requests_in(vars(messages)),
    PlaintextPrediction,
    CohortParameters,
    agree_with_cohort,
    modes=frozenset({SEMI_HONEST}),
    hides_updates=False,
)
