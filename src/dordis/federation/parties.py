"""Build the parties of a run: the selection, and a client with its owner, for simulation, network and Flower."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dordis.errors import InputError, ParametersRefused
from dordis.federation.beacon import Beacon
from dordis.federation.colluders import BALANCED, UNIFORM, VRF
from dordis.federation.owner import Owner
from dordis.federation.participation import Participation
from dordis.federation.policy import Policy
from dordis.federation.registry import Registry
from dordis.federation.selection import Balanced, Selection, Uniform, Verifiable
from dordis.federation.trainings import MemoryTrainings
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.protocol import ClientId
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppClient
from dordis.rounds.client import Client


@dataclass(frozen=True)
class SelectionRule:
    """How a run selects its clients: the kind named in the configuration, the cohort and the least cohort.

    `drawn` says that public randomness draws the clients; with `vrf`, `indices` bounds the round indices of the run.
    """

    kind: str
    per_round: int
    least: int
    drawn: bool = False
    indices: int | None = None

    def selection(self, registry: Registry, run: bytes, beacon: Beacon | None, seed: bytes = bytes(32)) -> Selection:
        """Return the selection of one run; `seed` is the server's, for `uniform`, which nobody verifies."""
        if self.kind == UNIFORM:
            return Uniform(self.per_round, seed, self.least)
        if self.kind == VRF:
            return Verifiable(registry, run, Fraction(self.per_round), self.least, required(beacon), self.indices)
        if self.kind == BALANCED:
            return Balanced(registry, run, self.per_round, self.least, required(beacon) if self.drawn else None)
        raise ParametersRefused(f"the selection '{self.kind}' is not known: use '{BALANCED}', '{UNIFORM}' or '{VRF}'")


def required(beacon: Beacon | None) -> Beacon:
    """Return the beacon; raise InputError if there is none."""
    if beacon is None:
        raise InputError("the selection is verified with public randomness: set deployment.beacon to its file")
    return beacon


def build_client(
    me: ClientId,
    app: AppClient,
    protocol: SummingProtocol,
    policy: Policy,
    selection: Selection,
    participation: Participation,
    *,
    root: bytes,
    vrf_key: bytes,
    beacon: Beacon | None,
    mechanism: type[Mechanism] | None,
    signing: bytes,
    registry: Mapping[ClientId, bytes],
    trainings: MemoryTrainings | None = None,
    **options: Any,
) -> Client:
    """Return a client with its owner: keys and registry sign and verify, policy and counts decide on consent.

    `options` are those of `dordis.rounds.client.Client`: journals, models, suite, entropy and how user code is run.
    """
    counted = MemoryTrainings() if trainings is None else trainings
    owner = Owner(me, policy, selection, participation, root, vrf_key, beacon, mechanism, counted)
    return Client(me, app, owner, protocol, signing=signing, registry=registry, mechanism=mechanism, **options)
