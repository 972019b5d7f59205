"""Flower nodes as helpers of assisted rounds: bundled requests, and their state on a node.

A Flower message takes seconds, so requests to a helper are bundled.  The helper's keys for coming rounds are requested
in the same message in which the helper opens the clients' boxes of seeds.  A node has a new process for every message
and stores no opened seeds, so each later request of the round is sent with the boxes again.
"""

from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from dordis.errors import InputError, ParametersRefused
from dordis.identity.keys import Keys
from dordis.identity.registry import Identity, Registry
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.assisted.helper import AssistedHelper, HelperPolicy, HelperStore
from dordis.protocols.assisted.messages import AgreeOnSurvivors, Introduce, OpenBoxes, Reveal
from dordis.protocols.assisted.parameters import EpochKeys
from dordis.protocols.parameters import RUN_BYTES
from dordis.protocols.summing import VerifyClient

HELPER = "dordis-helper"
"""Name of the record in Flower's state of a node with the durable state of a helper."""


class HelperRequests:
    """Bundles requests to helpers, and remembers the keys that helpers have sent for coming rounds."""

    def __init__(self) -> None:
        self._shown: dict[ClientId, tuple[bytes, EpochKeys]] = {}
        self._round, self._boxes = b"", dict[ClientId, list[Message]]()

    def known_replies(self, requests: Requests) -> dict[ClientId, Message]:
        """Return the replies to a request for helpers' keys if all are known from earlier replies; otherwise empty."""
        known = {h: keys for h, request in requests.items() if (keys := self._known_keys(h, request)) is not None}
        return dict(known) if len(known) == len(requests) else {}

    def _known_keys(self, helper: ClientId, request: Message) -> EpochKeys | None:
        run, keys = self._shown.get(helper, (b"", None))
        if not isinstance(request, Introduce) or keys is None or request.round[:RUN_BYTES] != run:
            return None
        index = int.from_bytes(request.round[RUN_BYTES:], "big")
        return keys if any(key.first <= index <= key.last for key in keys.keys.values()) else None

    def bundle(self, helper: ClientId, request: Message) -> tuple[Message, ...]:
        """Return the messages to send to a helper: those that it needs with or before the request, and the request."""
        if isinstance(request, OpenBoxes):
            if self._round != request.parameters.round:
                self._round, self._boxes = request.parameters.round, {}
            opened = self._boxes.setdefault(helper, [])
            opened.append(request)
            return (Introduce(self._round), request) if len(opened) == 1 else (request,)
        if isinstance(request, AgreeOnSurvivors | Reveal):
            return *self._boxes.get(helper, ()), request
        return (request,)

    def note_keys(self, helper: ClientId, request: Message, reply: Message) -> None:
        """Remember the keys in a helper's reply, if the request was for keys."""
        if isinstance(request, Introduce) and isinstance(reply, EpochKeys):
            self._shown[helper] = request.round[:RUN_BYTES], reply


def assign_helpers(
    registry: Registry, offers: Mapping[int, Identity], ids: Collection[int]
) -> tuple[Registry, dict[ClientId, int]]:
    """Return the registry with helpers of these `ids`, and the node of each; raise InputError if there are too few.

    `offers` has the helper keys of nodes that offer to be helpers.  If the registry already has helpers, the nodes with
    their keys are used; otherwise the first nodes in `offers`.
    """
    if registry.helpers:
        nodes = {identity: node for node, identity in offers.items()}
        missing = [h for h in ids if registry.helpers.get(ClientId(h)) not in nodes]
        if missing or len(registry.helpers) != len(ids):
            raise InputError(
                f"the registry has {len(registry.helpers)} helpers, and the run needs those with the ids "
                f"{', '.join(map(str, ids))}, all of them connected: make protocol.options and the registry agree"
            )
        return registry, {h: nodes[identity] for h, identity in registry.helpers.items()}
    if len(offers) < len(ids):
        raise InputError(
            f"{len(offers)} nodes offer to be helpers, and the run needs {len(ids)}: put "
            "DordisMod(policy, assists=HelperPolicy()) on more of them, or lower protocol.options.helpers"
        )
    nodes_of = {ClientId(h): node for h, node in zip(ids, offers, strict=False)}
    return Registry(registry, {h: offers[node] for h, node in nodes_of.items()}), nodes_of


class StateHelperStore:
    """A helper's state in Flower's state of its node, which is enough for simulations and semi-honest servers."""

    def __init__(self, state: RecordDict) -> None:
        if HELPER not in state:
            state[HELPER] = ConfigRecord()
        self._record: Any = state[HELPER]

    def get(self, key: str) -> bytes | None:
        """Return the value stored under a key; empty if it was erased, None if there never was one."""
        value: bytes | None = self._record.get(key)
        return value

    def claim(self, key: str, value: bytes) -> bytes:
        """Return the value stored under the key; if there is none, store and return the given one."""
        if key not in self._record:
            self._record[key] = value
        return bytes(self._record[key])

    def erase(self, key: str) -> None:
        """Erase a value; the key stays, so that no other value can be stored under it."""
        self._record[key] = b""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys with this prefix whose values are not erased."""
        return [key for key, value in self._record.items() if value and key.startswith(prefix)]


def build_helper(
    registry: Registry, keys: Keys, policy: HelperPolicy, store: HelperStore, run: bytes, verify_client: VerifyClient
) -> AssistedHelper:
    """Return the helper with these keys in a run; raise ParametersRefused if no helper of the registry has them."""
    identity, signing = keys.identity(), registry.signing_keys()
    for h, registered in registry.helpers.items():
        if registered == identity:
            return AssistedHelper(
                h,
                secret=keys.signing,
                registry=signing,
                store=store,
                policy=policy,
                run=run,
                verify_client=verify_client,
            )
    raise ParametersRefused("the registry of the run does not name this node as a helper")
