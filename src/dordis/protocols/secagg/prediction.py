"""The outcome of SecAgg for given dropouts, computed without masks or messages: the same U3, noise and failures."""

from collections.abc import Sequence
from dataclasses import dataclass

from dordis.errors import TooFewClients
from dordis.protocol import ClientId, Message, requests_in
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.escrow import Releases
from dordis.protocols.replies import ensure_enough
from dordis.protocols.secagg import messages
from dordis.protocols.secagg.messages import Agree, CollectInput, RemoveNoise, ShareKeys, Unmask
from dordis.protocols.summing import Leaving

Stage = type[Message]

STAGES = [request for request in requests_in(vars(messages)) if not request.ahead]
_UPLOAD, _UNMASK = STAGES.index(CollectInput), STAGES.index(Unmask)


@dataclass(frozen=True)
class SecAggPrediction:
    """The outcome of one SecAgg round in which each client leaves at the stage given by `leaving`."""

    parameters: CohortParameters
    leaving: Leaving

    def survivors(self) -> tuple[ClientId, ...]:
        """Return the survivors, U3; raise if too few clients answer a stage before the upload."""
        self._check_quorums(STAGES[:_UPLOAD])
        return tuple(self._answering(CollectInput))

    def check_before_disclosure(self) -> None:
        """Raise if too few clients uploaded, or too few sign U3."""
        self._check_quorums(STAGES[_UPLOAD:_UNMASK])

    def check_after_disclosure(self) -> None:
        """Raise if too few clients, or too few neighbours of a client, remain to rebuild secrets."""
        self._check_quorums(STAGES[_UNMASK:])
        if not self.parameters.degree:
            return
        there = set(self._answering(Unmask))
        for u in self._answering(ShareKeys):
            if (holders := len(there & self.parameters.neighbourhoods[u])) < self.parameters.threshold:
                raise TooFewClients(Unmask.__name__, holders, self.parameters.threshold)

    def unreleased(self, due: Releases) -> Releases:
        """Return the due secrets that neither their owner discloses nor enough other clients' shares rebuild."""
        telling, helping = (set(self._answering(stage)) for stage in (Unmask, RemoveNoise))
        owing = {u: ks for u, ks in due.items() if ks and u not in telling}
        holders = self.parameters.neighbourhoods
        return {u: ks for u, ks in owing.items() if len(helping & holders[ClientId(u)]) < self.parameters.threshold}

    def _answering(self, stage: Stage) -> list[ClientId]:
        """Return the clients that answer a stage and all stages before."""
        before = {earlier.__name__ for earlier in STAGES[: STAGES.index(stage) + 1]}
        return [u for u in self.parameters.clients if self.leaving.get(u) not in before]

    def _check_quorums(self, stages: Sequence[Stage]) -> None:
        """Raise TooFewClients or TooManyDropouts for the first of these stages at which the server would raise it."""
        needed = (Agree, Unmask) if self.parameters.is_malicious else (Unmask,)
        for stage in stages:
            there = self._answering(stage)
            if STAGES.index(stage) <= _UPLOAD:
                ensure_enough(self.parameters, stage.__name__, there)
            elif stage in needed and len(there) < self.parameters.quorum:
                raise TooFewClients(stage.__name__, len(there), self.parameters.quorum)
