"""The same sum with no masks at all: a template for authors of protocols, and the oracle that SecAgg is compared to.

Clients send their noisy inputs in the clear and disclose the seeds that are due.  It protects nobody.
"""

from dataclasses import dataclass

from dordis.privacy.xnoise import Due
from dordis.protocol import ClientId, requests_in
from dordis.protocols.collecting import ensure_enough
from dordis.protocols.parameters import SEMI_HONEST, Parameters
from dordis.protocols.plaintext import messages
from dordis.protocols.plaintext.client import NoiseSeeds, PlaintextClient
from dordis.protocols.plaintext.server import PlaintextServer
from dordis.protocols.summing import Leaving, SummingProtocol

__all__ = ["PLAINTEXT", "NoiseSeeds", "PlaintextClient", "PlaintextServer"]

_BEGIN, _CONTRIBUTE, _DISCLOSE = (request.__name__ for request in requests_in(vars(messages)))


@dataclass(frozen=True)
class PlaintextPrediction:
    """The course of one round in which clients leave as foretold."""

    parameters: Parameters
    leaving: Leaving

    def survivors(self) -> tuple[ClientId, ...]:
        """Return U3."""
        ensure_enough(self.parameters, _BEGIN, self._answering(_BEGIN))
        return self._answering(_BEGIN, _CONTRIBUTE)

    def check_before_disclosure(self) -> None:
        """Raise if too few clients contributed."""
        ensure_enough(self.parameters, _CONTRIBUTE, self._answering(_BEGIN, _CONTRIBUTE))

    def check_after_disclosure(self) -> None:
        """Raise nothing: noise whose seed is not told stays."""

    def stayed(self, due: Due) -> Due:
        """Return the due noise of those who leave before they disclose."""
        return {u: ks for u, ks in due.items() if ks and self.leaving.get(ClientId(u)) == _DISCLOSE}

    def _answering(self, *stages: str) -> tuple[ClientId, ...]:
        return tuple(u for u in self.parameters.clients if self.leaving.get(u) not in stages)


PLAINTEXT = SummingProtocol(
    "plaintext",
    PlaintextServer,
    PlaintextClient,
    requests_in(vars(messages)),
    PlaintextPrediction,
    modes=frozenset({SEMI_HONEST}),
    hides_updates=False,
)
