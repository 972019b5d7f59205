"""Flower nodes as helpers of assisted rounds: bundled requests, and their state on a node.

A Flower message takes seconds, so a helper gets few.  Keys for coming rounds are requested together with the boxes of a
round.  A node has a new process for every message and stores no opened seeds, so each later request of the round is
sent with the boxes again.
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
"""Name of the record in Flower's state that has the keys and agreements of a helper."""


class HelperRequests:
    """Bundles requests to helpers, and stores the keys that they have shown for coming rounds."""

    def __init__(self) -> None:
        self._shown: dict[ClientId, tuple[bytes, EpochKeys]] = {}
        self._round, self._boxes = b"", dict[ClientId, list[Message]]()

    def known_replies(self, requests: Requests) -> dict[ClientId, Message]:
        """Return the helpers' replies to a request for keys if all are known from earlier replies; otherwise none."""
        known = {h: keys for h, request in requests.items() if (keys := self._known_keys(h, request)) is not None}
        return dict(known) if len(known) == len(requests) else {}

    def _known_keys(self, helper: ClientId, request: Message) -> EpochKeys | None:
        run, keys = self._shown.get(helper, (b"", None))
        if not isinstance(request, Introduce) or keys is None or request.round[:RUN_BYTES] != run:
            return None
        index = int.from_bytes(request.round[RUN_BYTES:], "big")
        return keys if any(key.first <= index <= key.last for key in keys.keys.values()) else None

    def bundle(self, helper: ClientId, request: Message) -> tuple[Message, ...]:
        """Return the messages to send to a helper for a request, with the request as the last one."""
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
        """Store the keys that a helper shows in a reply."""
        if isinstance(request, Introduce) and isinstance(reply, EpochKeys):
            self._shown[helper] = request.round[:RUN_BYTES], reply


def assign_helpers(
    registry: Registry, offers: Mapping[int, Identity], ids: Collection[int]
) -> tuple[Registry, dict[ClientId, int]]:
    """Return the registry with its helpers, and the node of each; raise InputError if too few nodes offer to help.

    If the registry already has helpers, these are used; otherwise the first nodes that offer it.
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
    """The durable state of a helper in Flower's state of its node: for simulations and semi-honest servers."""

    def __init__(self, state: RecordDict) -> None:
        if HELPER not in state:
            state[HELPER] = ConfigRecord()
        self._record: Any = state[HELPER]

    def get(self, key: str) -> bytes | None:
        """Return a stored value; empty if it was erased, None if none was stored."""
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
    """Return the helper of a run with these keys; raise ParametersRefused if the registry does not name it."""
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
