"""Pins: settings of a node that its owner fixes when starting it (`flower-supernode --node-config`)."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.identity.keys import Keys, load_keys
from dordis.identity.registry import Registry
from dordis.integrations.flower.messages import RunDescription, check_weight
from dordis.network.helper_directory import COUNT, FileHelperStore
from dordis.owner.policy import Policy
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.records import ROOM
from dordis.selection.beacon import FileBeacon

KEYS, REGISTRY, STATE = "dordis-keys", "dordis-registry", "dordis-state"
"""Names of the settings for the owner's key file, the registry of all clients, and the directory of the node's state.
"""
HELPER_KEYS = "dordis-helper-keys"
"""Name of the setting for the file with the keys that the node uses if it is a helper of assisted rounds."""
COHORT, LEAST_COHORT = "dordis-cohort", "dordis-least-cohort"
"""Names of the settings for the number of scheduled clients of a round, and for the least number of clients in it."""
TRAIN_SECONDS = "dordis-train-seconds"
"""Name of the setting for the fixed training time in seconds."""
BEACON = "dordis-beacon"
"""Name of the setting for the beacon, a file of published randomness."""
WEIGHT = "dordis-weight"
"""Name of the setting for the public weight of the node's updates, above 0 and at most 1."""
EPSILON, DELTA = "dordis-epsilon", "dordis-delta"
"""Names of the settings for the owner's budget, which replaces the budget in the mod's policy."""


@dataclass(frozen=True)
class Pins:
    """The owner's settings of one node; the node is pinned if they include keys and registry."""

    config: Mapping[str, Any]

    @property
    def is_pinned(self) -> bool:
        """Tell whether the owner has given the node keys and a registry."""
        return KEYS in self.config and REGISTRY in self.config

    def keys(self) -> Keys | None:
        """Return the keys in the owner's key file; None if no file is set."""
        return self._keys(KEYS)

    def helper_keys(self) -> Keys | None:
        """Return a pinned node's keys as a helper; None if no file is set or the node is not pinned."""
        return self._keys(HELPER_KEYS) if self.is_pinned else None

    def helper_store(self) -> FileHelperStore:
        """Return the state that a pinned node has as a helper, stored in a directory beside its helper key file."""
        path = self._path(HELPER_KEYS)
        if path is None:
            raise InputError(f"set {HELPER_KEYS} on this node")
        return FileHelperStore(path.with_suffix(".state"), path.with_suffix(COUNT))

    def _keys(self, name: str) -> Keys | None:
        path = self._path(name)
        if path is None:
            return None
        keys = load_keys(path).keys
        if keys is None:
            raise InputError(f"{path} is the key file of a server: set {name} to the key file of a client")
        return keys

    def registry(self) -> Registry | None:
        """Return the registry that the owner has pinned; None if none is set."""
        path = self._path(REGISTRY)
        try:
            return None if path is None else Registry.load(path)
        except OSError as error:
            raise InputError(f"cannot read the registry {path}: {error.strerror}") from None

    def state(self) -> Path | None:
        """Return the directory for the state of a pinned node; None if the node is not pinned.

        The directory is named by the node's public key.  It is in the directory that the setting `dordis-state` names,
        or else in a directory beside the key file.  So several nodes of one owner may have the same `dordis-state`.
        """
        if not self.is_pinned:
            check_no_state(self.config)
            return None
        keys, path = self.keys(), self._path(KEYS)
        if keys is None or path is None:
            raise InputError(f"set {KEYS} on this node")
        return (self._path(STATE) or path.with_suffix(".state")) / keys.identity().signing.hex()

    def beacon(self) -> FileBeacon | None:
        """Return the beacon in the owner's file; None if no file is set."""
        path = self._path(BEACON)
        return None if path is None else FileBeacon(path)

    def weight(self) -> float:
        """Return the weight of this node's updates, 1 by default; raise InputError unless 0 < weight <= 1."""
        weight = float(self.config.get(WEIGHT, 1.0))
        check_weight(weight)
        return weight

    def policy(self, policy: Policy) -> Policy:
        """Return the mod's `policy`, with the epsilon and delta that the owner has set as pins, if any."""
        budget = {"epsilon": EPSILON, "delta": DELTA}
        own = {name: float(self.config[key]) for name, key in budget.items() if key in self.config}
        return msgspec.structs.replace(policy, **own)

    def train_seconds(self) -> float | None:
        """Return the fixed training time in seconds; None if it is not set. Raise InputError unless it is above 0."""
        seconds = self.config.get(TRAIN_SECONDS)
        if seconds is not None and not 0 < float(seconds) < math.inf:
            raise InputError(f"{TRAIN_SECONDS} = {seconds} on this node: set a number of seconds above 0")
        return None if seconds is None else float(seconds)

    def cohort(self) -> tuple[int, int] | None:
        """Return a round's number of scheduled clients and least number of clients; None if `dordis-cohort` is not set.

        By default the least number is a majority of the scheduled clients.
        """
        if COHORT not in self.config:
            return None
        cohort = int(self.config[COHORT])
        return cohort, int(self.config.get(LEAST_COHORT, cohort // 2 + 1))

    def _path(self, name: str) -> Path | None:
        return Path(str(self.config[name])) if name in self.config else None


def is_simulated() -> bool:
    """Tell whether this process belongs to Flower's simulation engine, which runs ClientApps in Ray actors."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def check_no_state(config: Mapping[str, Any]) -> None:
    """Raise InputError if `dordis-state` is set on a node that is not pinned, and so lacks the owner's keys."""
    if STATE in config:
        raise InputError(f"{STATE} is set on a node that is not pinned: set {KEYS} and {REGISTRY} too")


def check_pinned_or_simulated(mode: str, pins: Pins, simulated: bool) -> None:
    """Raise ParametersRefused if a node in the malicious mode is neither pinned nor simulated."""
    if mode == MALICIOUS and not pins.is_pinned and not simulated:
        raise ParametersRefused(
            f"against a malicious server a node needs its owner's files: set {KEYS} and {REGISTRY} on this node "
            "(flower-supernode --node-config), or protocol.mode = 'semi-honest' for a server that all owners trust"
        )


def check_time_fixed(mode: str, pins: Pins, simulated: bool) -> None:
    """Raise ParametersRefused if a deployed node in the malicious mode has no fixed training time."""
    if mode == MALICIOUS and pins.train_seconds() is None and not simulated:
        raise ParametersRefused(
            f"against a malicious server training must take a fixed time: set {TRAIN_SECONDS} on this node, to more "
            "seconds than training takes on its machine"
        )


def check_room(seconds: float, pins: Pins) -> None:
    """Raise InputError if the fixed training time is below ROOM times `seconds`, measured for the largest sample."""
    agreed = pins.train_seconds()
    if agreed is not None and agreed < ROOM * seconds:
        raise InputError(
            f"{TRAIN_SECONDS} = {agreed:g} is too short for the largest batch of records on this node: set at least "
            f"{ROOM * seconds:.2g}"
        )


def check_cohort_pinned(description: RunDescription, pins: Pins) -> None:
    """Compare the cohort sizes of a run with the node's pins, if the node is pinned and the selection is `balanced`.

    Raise ParametersRefused if no sizes are pinned, if the number of scheduled clients differs from its pin, or if the
    least cohort is below its pin.  In a smaller cohort than agreed, most clients could be colluders.
    """
    if not pins.is_pinned or description.selection != "balanced":
        return
    agreed = pins.cohort()
    if agreed is None:
        raise ParametersRefused(
            f"a pinned node checks the number of clients per round: set {COHORT} on this node to the agreed number"
        )
    cohort, least = agreed
    if description.per_round != cohort or description.least < least:
        raise ParametersRefused(
            f"the run has {description.per_round} clients per round and at least {description.least}, and this node's "
            f"owner agreed to {cohort} and at least {least} ({COHORT}, {LEAST_COHORT}): make server and nodes agree"
        )


def check_registry(registry: Registry, known: Registry, which: str) -> None:
    """Raise ParametersRefused unless the registry of the run equals `known`; the error describes `known` by `which`."""
    if registry.root() != known.root():
        raise ParametersRefused(
            f"the registry of the run differs from the one {which}: ask the server's operator for it"
        )


def check_has_beacon(protocol: SummingProtocol, config: Mapping[str, Any]) -> None:
    """Raise ParametersRefused if no beacon is set, and nodes need one to verify the protocol's sparse graph."""
    if protocol.sparse and BEACON not in config:
        raise ParametersRefused(f"the graph of '{protocol.name}' is verified with a beacon: set {BEACON} on this node")
