"""Build the selection of a run, and a client with its owner, for simulation, network and Flower."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dordis.errors import InputError, ParametersRefused
from dordis.identity.registry import Registry
from dordis.owner.participation import MemoryTrainings, Participation
from dordis.owner.policy import CLIENT, RECORD, Owner, Policy
from dordis.owner.receipts import KeptReceipts
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.record_accounting import WORD
from dordis.protocol import ClientId
from dordis.protocols.parameters import Assistance
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppClient
from dordis.rounds.client import Client
from dordis.runs.plan import RoundPlan
from dordis.selection.beacon import Beacon
from dordis.selection.colluders import BALANCED, OPEN, UNIFORM, VRF
from dordis.selection.selection import BalancedSelection, OpenArrival, Selection, UniformSelection
from dordis.selection.vrf_selection import VrfSelection


@dataclass(frozen=True)
class SelectionRule:
    """How a run selects its clients.

    `kind` is `balanced`, `uniform`, `vrf` or `open` (any registered client may contribute), `per_round` the number of
    clients of a round, and `least` the smallest number of clients with which a round takes place.  `drawn` tells
    whether public randomness selects the clients.  With `vrf`, `indices` is the number of round indices that the run
    may use.
    """

    kind: str
    per_round: int
    least: int
    drawn: bool = False
    indices: int | None = None

    def selection(self, registry: Registry, run: bytes, beacon: Beacon | None, seed: bytes = bytes(32)) -> Selection:
        """Return the selection of a run.

        With `uniform` the server draws clients from `seed`, and nobody verifies this draw.  With `open` the order in
        which clients come in a simulation follows from `seed`.
        """
        if self.kind == UNIFORM:
            return UniformSelection(self.per_round, seed, self.least)
        if self.kind == VRF:
            return VrfSelection(
                registry, run, Fraction(self.per_round), self.least, require_beacon(beacon), self.indices
            )
        if self.kind == BALANCED:
            return BalancedSelection(
                registry, run, self.per_round, self.least, require_beacon(beacon) if self.drawn else None
            )
        if self.kind == OPEN:
            return OpenArrival(registry, run, self.least, seed)
        raise ParametersRefused(f"the selection '{self.kind}' is not known: use '{BALANCED}', '{UNIFORM}' or '{VRF}'")


def require_beacon(beacon: Beacon | None) -> Beacon:
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
    receipts: KeptReceipts | None = None,
    **options: Any,
) -> Client:
    """Return a client whose owner checks policy, selection and number of participations in each round.

    `signing` is the client's signing key, `vrf_key` its key for VRF selection, `registry` the public keys of all
    clients and `root` the registry root that the owner has pinned.  `trainings` counts trainings since the last
    participation, by default in memory.  `receipts` is the client's store of receipts, None in simulations.  `options`
    go to `dordis.rounds.client.Client`.
    """
    counted = MemoryTrainings() if trainings is None else trainings
    owner = Owner(me, policy, selection, participation, root, vrf_key, beacon, mechanism, counted, receipts)
    return Client(me, app, owner, protocol, signing=signing, registry=registry, mechanism=mechanism, **options)


def policy_for(design: RoundPlan, protocol: SummingProtocol) -> Policy:
    """Return the policy of an owner who agrees to exactly this round plan over this protocol.

    If owners can bound the cost of a round, the owner's budget is the budget of the run; otherwise the policy bounds
    the number of participations.  The policy does not bound the training count: only deployed clients need that bound.
    """
    setting, parameters = design.setting, design.example()
    trusted = protocol.assistance or Assistance((), 0)
    return Policy(
        cohort=design.least,
        quorum=min(Fraction(1, 2), Fraction(setting.t, setting.clients)),
        colluders=setting.colluders,
        bits=parameters.bits,
        modes=frozenset({parameters.mode}),
        schemes=frozenset({parameters.scheme}),
        mechanisms=frozenset({parameters.encoding.mechanism}),
        protocols=frozenset({protocol.name}),
        helpers=frozenset(trusted.helpers),
        honest_helpers=len(trusted.helpers) - trusted.faulty,
        faulty_helpers=trusted.faulty,
        no_base=trusted.no_base,
        epsilon=design.epsilon if design.counts else None,
        delta=design.delta if design.counts else None,
        without_guarantee=not design.counts,
        units=frozenset({RECORD if design.sampled else CLIENT}),
        sampling=Fraction(setting.records.sampling, WORD) if setting.records else Fraction(1),
        participations=design.cap if design.proves and not design.counts else None,
        trainings=None,
    )
