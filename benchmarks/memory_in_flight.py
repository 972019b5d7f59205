"""The most memory that a server holds while all chunks of a round are in flight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from benchmarks.server_process import peak_mb
from dordis.pipeline.executor import Exchange, serialise_exchange
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.setting import Setting
from dordis.protocol import ClientId, Message, requests_in
from dordis.protocols import delivery
from dordis.protocols.parameters import SEMI_HONEST, Parameters
from dordis.protocols.secagg import SECAGG
from dordis.rounds import invitation
from dordis.rounds.app import FixedClient
from dordis.rounds.client import Client
from dordis.rounds.engine import AgreedRound, RoundEngine, RoundResult
from dordis.rounds.invitation import Invitation, Invite, Terms
from dordis.rounds.model import ModelBytes
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from reproduce.network import NoReplay

MODEL = ModelBytes.from_numbers(())
REQUESTS = (*requests_in(vars(invitation)), *SECAGG.requests, *requests_in(vars(delivery)))


class Trusting:
    """An owner who agrees to everything: what owners check is measured elsewhere."""

    def accept(self, invite: Invite) -> bytes:
        """Agree; there is nothing to prove."""
        return b""

    def take_piece(self, count: int) -> None:
        """Agree."""

    def train(self, invite: Invite) -> None:
        """Count nothing."""

    def consent(self, parameters: Parameters, proofs: object) -> None:
        """Agree."""

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count nothing."""

    def conclude(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Keep nothing."""


@dataclass(frozen=True)
class InFlight:
    """A round of n clients and d coordinates in m chunks, all in flight at once."""

    clients: int
    dim: int
    chunks: int

    @cached_property
    def design(self) -> RoundPlan:
        """Return the noise of a run of five such rounds."""
        setting = Setting(ParticipationSchedule(10 * self.clients, self.clients, 5), self.dim)
        return RoundPlan(XNoise(), setting, 6.0, ThreatModel(SEMI_HONEST))

    def agreed(self) -> AgreedRound:
        """Agree on the round."""
        everyone = range(1, self.clients + 1)
        parameters = self.design.agree_on(
            run=bytes(32), index=0, clients=everyone, rotation=bytes(32), model=MODEL.digest, chunks=self.chunks
        )
        return AgreedRound(parameters, self.design.mechanism)

    def invitation(self, parameters: Parameters) -> Invitation:
        """Invite all clients."""
        invite = Invite(
            round=parameters.round,
            number=1,
            protocol=SECAGG.name,
            registry=b"",
            dim=self.dim,
            terms=Terms.from_parameters(parameters),
            model=MODEL.digest,
            model_bytes=0,
            dtype=MODEL.dtype,
        )
        return Invitation(invite, MODEL, parameters.clients)

    def peak_mb(self) -> float:
        """Run a round with its server alone in a process."""
        app, owner, ids = FixedClient(np.zeros(self.dim)), Trusting(), [ClientId(u) for u in range(1, self.clients + 1)]
        clients = {u: Client(u, app, owner, SECAGG, journals=lambda round: NoReplay()) for u in ids}

        def answer(u: ClientId, request: Message) -> Message:
            return clients[u].handle(request)

        return peak_mb(partial(_serve, self), answer, REQUESTS)


def _serve(setting: InFlight, exchange: Exchange) -> Callable[[], None]:
    agreed = setting.agreed()
    engine = RoundEngine(serialise_exchange(exchange), SECAGG, {}, lambda index: agreed.parameters.clients)
    engine.gather(setting.invitation(agreed.parameters))
    return partial(_nobody_lost, engine.sum(agreed), setting.clients)


def _nobody_lost(result: RoundResult, clients: int) -> None:
    assert not result.dropped
    assert all(len(output.survivors) == clients for output in result.outputs)
