"""Where the clients of a run under Flower are: on nodes that have shown their keys."""

import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from flwr.app import RecordDict
from flwr.superlink.grid import InMemoryGrid

from dordis import wire
from dordis.errors import DordisError, InputError, ProtocolError
from dordis.federation.beacon import FileBeacon
from dordis.federation.charges import OwnersCount
from dordis.federation.job import Job
from dordis.federation.participation import Attendance
from dordis.federation.records import DEPLOYED
from dordis.federation.registry import Identity, Registry
from dordis.federation.selection import Selection, Uniform
from dordis.integrations.flower.arrays import Layout
from dordis.integrations.flower.exchange import Assignment, FlowerExchange, Post, opened
from dordis.integrations.flower.messages import RECORD, Charter, Enrol, Enrolled, seal, to_record
from dordis.pipeline.together import execute_together
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId
from dordis.protocols.distributed_dp import Aggregate
from dordis.rounds.app import AppServer, RoundInfo
from dordis.rounds.server import RoundEngine, Rounds, at_once

LOG = logging.getLogger("dordis.flower")
REGISTRY = "registry.json"


class FlowerModel(AppServer):
    """The application of a run under Flower: the model is the strategy's, and so is what becomes of the mean."""

    folds: ClassVar[bool] = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.vector: Floats = np.zeros(layout.dim)
        self._aggregate: Aggregate | None = None

    @property
    def dim(self) -> int:
        """Return the number of coordinates of the model."""
        return self.layout.dim

    def model(self) -> Floats:
        """Return the model of this round."""
        return self.vector

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Keep the mean for the strategy."""
        self._aggregate = aggregate

    @property
    def mean(self) -> Floats:
        """Return the mean of the last round."""
        if self._aggregate is None:
            raise ProtocolError("no round was summed yet")
        return self._aggregate.mean


@dataclass
class FlowerHome:
    """The enrolled nodes of a run, and the engine that reaches them."""

    post: Post
    registry: Registry
    nodes: Mapping[ClientId, int]
    job: Job
    patience: float
    training: Assignment = field(default_factory=Assignment)
    where: str = "by Flower"
    selection_seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    consents: tuple[str, ...] = ()
    """What owners allow beyond the usual is theirs to know: they do not tell."""

    @property
    def fidelity(self) -> str:
        """Return `full` where Flower simulates the nodes, `deployed` where they are somewhere."""
        return "full" if isinstance(self.post.grid, InMemoryGrid) else DEPLOYED

    @property
    def beacon(self) -> FileBeacon:
        """Return the published file: sparse graphs are drawn from it, and nothing else needs one."""
        path = self.job.config.deployment.beacon
        return FileBeacon(Path(path), "" if path else "none")

    @property
    def root(self) -> bytes:
        """Return the root of the registry."""
        return self.registry.root()

    def begun(self) -> None:
        """Return nothing: a round that was cut is not taken up again."""

    def store(self, path: Path) -> None:
        """Write the registry, for owners to compare."""
        self.registry.save(path / REGISTRY)

    def open(self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnersCount]) -> Rounds:
        """Return the engine, with Flower's messages as its exchange."""
        federation = self.job.config.federation
        charter = Charter(
            run=run,
            registry=self.registry.to_bytes(),
            protocol=self.job.config.protocol.use,
            selection=federation.selection,
            per_round=federation.per_round,
            least=self.job.design.setting.t,
        )
        exchange = FlowerExchange(self.post, self.nodes, self.job.protocol, charter, self.training, self.patience)

        def available(index: int) -> Collection[ClientId]:
            """Return whom the strategy has chosen, where it may choose, or everybody: then whoever is due is asked."""
            return tuple(self.training.contents) if isinstance(selection, Uniform) else tuple(self.nodes)

        return RoundEngine(
            exchange,
            self.job.protocol,
            self.registry.signing_keys(),
            available,
            suite=self.job.suite,
            meter=exchange,
            compute=at_once,
            execute=execute_together,
            delivers=False,
        )


def enrol(
    post: Post, nodes: Collection[int], known: Registry | None, timeout: float | None
) -> tuple[Registry, dict[ClientId, int]]:
    """Ask nodes for their public keys; return the registry, and the node of every client.

    Without a registry that is `known` beforehand, the one that is made rests on the word of whoever relays the keys.
    """
    asked = RecordDict({RECORD: to_record([seal(Enrol())])})
    replies = post.send(dict.fromkeys(nodes, asked), timeout)
    identities: dict[int, Identity] = {}
    for node, reply in sorted(replies.items()):
        try:
            ((frame, _),), _ = opened(reply)
            keys = wire.decode(frame, Enrolled)
        except (DordisError, ValueError) as error:
            raise InputError(
                f"node {node} cannot take part in private rounds: {error}; put dordis_mod among the mods of its "
                "ClientApp, of the same version of dordis as here"
            ) from None
        identities[node] = Identity(keys.signing, keys.vrf)
    if known is None:
        clients = {ClientId(place): node for place, node in enumerate(identities, 1)}
        return Registry({u: identities[node] for u, node in clients.items()}), clients
    return known, _found(known, identities)


def _found(known: Registry, identities: Mapping[int, Identity]) -> dict[ClientId, int]:
    ids = {identity: u for u, identity in known.items()}
    for node in [node for node, identity in identities.items() if identity not in ids]:
        LOG.warning("node %d is left out: its keys are not in the registry", node)
    return {ids[identity]: node for node, identity in identities.items() if identity in ids}
