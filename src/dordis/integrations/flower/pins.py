"""What the owner of a node has fixed when it was started (`flower-supernode --node-config`), whatever a server says."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dordis.errors import InputError, ParametersRefused
from dordis.federation.beacon import FileBeacon
from dordis.federation.identity import load_keys
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.integrations.flower.messages import Charter, check_weight
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.summing import SummingProtocol

KEYS, REGISTRY, STATE = "dordis-keys", "dordis-registry", "dordis-state"
"""The owner's key file, the registry of all clients, and the directory for what a node must not lose."""
COHORT, LEAST_COHORT = "dordis-cohort", "dordis-least-cohort"
"""How many clients are scheduled for a round, and how few of them may be left in it."""
TRAIN_SECONDS = "dordis-train-seconds"
"""How long training takes, whatever the data: its end does not show."""
BEACON = "dordis-beacon"
"""The file of published randomness."""
WEIGHT = "dordis-weight"
"""What the updates of the node count for, above 0 and at most 1; everybody may know it."""
EPSILON, DELTA = "dordis-epsilon", "dordis-delta"
"""The budget of the owner, in place of that of the mod."""


@dataclass(frozen=True)
class Pins:
    """The settings of one node; a node is pinned if its owner has given it keys and the registry of all clients."""

    config: Mapping[str, Any]

    @property
    def pinned(self) -> bool:
        """Tell whether the node rests on nothing that a server says about keys."""
        return KEYS in self.config and REGISTRY in self.config

    def keys(self) -> Keys | None:
        """Return the keys of the owner's file, if there is one."""
        path = self._path(KEYS)
        if path is None:
            return None
        keys = load_keys(path).keys
        if keys is None:
            raise InputError(f"{path} is a server's: give the key file of a client")
        return keys

    def registry(self) -> Registry | None:
        """Return the registry that the owner has pinned, if there is one."""
        path = self._path(REGISTRY)
        try:
            return None if path is None else Registry.load(path)
        except OSError as error:
            raise InputError(f"cannot read the registry {path}: {error.strerror}") from None

    def state(self) -> Path | None:
        """Return the directory of a pinned node: `dordis-state`, or else one beside the key file; None if not pinned.

        Each key has a directory of its own in it, so that nodes of one owner may share the setting.
        """
        if not self.pinned:
            check_no_state(self.config)
            return None
        keys, path = self.keys(), self._path(KEYS)
        if keys is None or path is None:
            raise InputError(f"set {KEYS} on this node")
        return (self._path(STATE) or path.with_suffix(".state")) / keys.identity().signing.hex()

    def beacon(self) -> FileBeacon | None:
        """Return the published randomness that the owner reads."""
        path = self._path(BEACON)
        return None if path is None else FileBeacon(path)

    def weight(self) -> float:
        """Return what the updates of this node count for."""
        weight = float(self.config.get(WEIGHT, 1.0))
        check_weight(weight)
        return weight

    def policy(self, policy: Policy) -> Policy:
        """Return the policy of the mod, with the owner's own budget if there is one."""
        budget = {"epsilon": EPSILON, "delta": DELTA}
        own = {name: float(self.config[key]) for name, key in budget.items() if key in self.config}
        return msgspec.structs.replace(policy, **own)

    def train_seconds(self) -> float | None:
        """Return the seconds after which an update is ready, never earlier; None if the owner has not fixed them."""
        seconds = self.config.get(TRAIN_SECONDS)
        if seconds is not None and not 0 < float(seconds) < math.inf:
            raise InputError(f"{TRAIN_SECONDS} is a number of seconds above 0, not {seconds}")
        return None if seconds is None else float(seconds)

    def cohort(self) -> tuple[int, int] | None:
        """Return the scheduled cohort and the least one, a majority of it if not given; None if neither is set."""
        if COHORT not in self.config:
            return None
        cohort = int(self.config[COHORT])
        return cohort, int(self.config.get(LEAST_COHORT, cohort // 2 + 1))

    def _path(self, name: str) -> Path | None:
        return Path(str(self.config[name])) if name in self.config else None


def is_simulated() -> bool:
    """Tell whether this process belongs to Flower's simulation engine, which runs ClientApps in actors of Ray."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def check_no_state(config: Mapping[str, Any]) -> None:
    """A directory is for a node that has its owner's keys: what is in it belongs to them."""
    if STATE in config:
        raise InputError(f"{STATE} keeps what belongs to the owner's key: set {KEYS} and {REGISTRY} too")


def check_pinned_or_simulated(mode: str, pins: Pins, simulated: bool) -> None:
    """Against a malicious server keys, registry and count are the owner's; simulated nodes have no owner."""
    if mode == MALICIOUS and not pins.pinned and not simulated:
        raise ParametersRefused(
            f"against a malicious server a node needs its owner's files: set {KEYS} and {REGISTRY} on this node "
            "(flower-supernode --node-config), or protocol.mode = 'semi-honest' for a server that all owners trust"
        )


def check_time_fixed(mode: str, pins: Pins, simulated: bool) -> None:
    """Against a malicious server an update is ready at a time that the data do not decide."""
    if mode == MALICIOUS and pins.train_seconds() is None and not simulated:
        raise ParametersRefused(
            f"against a malicious server training takes a fixed time: set {TRAIN_SECONDS} on this node, to more than "
            "training takes on its machine"
        )


def check_cohort_pinned(charter: Charter, pins: Pins) -> None:
    """The schedule of a run has the cohort of the owner: a smaller one could be made of colluders."""
    if not pins.pinned or charter.selection != "balanced":
        return
    agreed = pins.cohort()
    if agreed is None:
        raise ParametersRefused(f"a pinned node says how many clients a round has: set {COHORT} on this node")
    cohort, least = agreed
    if charter.per_round != cohort or charter.least < least:
        raise ParametersRefused(
            f"the run schedules {charter.per_round} clients a round and goes on with {charter.least}, and the owner "
            f"agrees to {cohort} and no fewer than {least} ({COHORT}, {LEAST_COHORT})"
        )


def check_registry(told: Registry, known: Registry, which: str) -> None:
    """The run has the registry that is known here."""
    if told.root() != known.root():
        raise ParametersRefused(f"the run has another registry than the one {which}")


def check_has_beacon(protocol: SummingProtocol, config: Mapping[str, Any]) -> None:
    """Who is to mask with whom can be verified here: no data is touched otherwise."""
    if protocol.sparse and BEACON not in config:
        raise ParametersRefused(f"'{protocol.name}' is verified with public randomness: set {BEACON} on this node")
