"""The assisted protocol: one message from each client, and a few named helpers who let the server unmask the sum."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from dordis.errors import InputError
from dordis.protocol import requests_in
from dordis.protocols.assisted import messages
from dordis.protocols.assisted.client import AssistedClient
from dordis.protocols.assisted.helper import AssistedHelper
from dordis.protocols.assisted.messages import Introduce
from dordis.protocols.assisted.parameters import STRATEGIES, AssistedParameters, Options, agree_with_helpers
from dordis.protocols.assisted.server import AssistedServer
from dordis.protocols.parameters import MALICIOUS, Assistance
from dordis.protocols.summing import SummingProtocol

__all__ = ["ASSISTED", "AssistedClient", "AssistedHelper", "AssistedServer"]


def configure(protocol: SummingProtocol, settings: Mapping[str, Any], mode: str) -> SummingProtocol:
    """Return the protocol with `settings`, the `protocol.options` of a configuration; raise InputError if invalid."""
    try:
        options = msgspec.convert(settings, Options)
    except msgspec.ValidationError as error:
        raise InputError(f"protocol.options of 'assisted' are wrong: {error}") from None
    count = options.helpers or (3 * options.faulty + 1 if mode == MALICIOUS else 2 * options.faulty + 1)
    ids = tuple(range(1, count + 1)) if isinstance(count, int) else tuple(sorted(set(count)))
    trusted = Assistance(ids, options.faulty, options.no_base)
    return replace(protocol, helpers=len(ids), agree=partial(agree_with_helpers, options), assistance=trusted)


ASSISTED = SummingProtocol(
    "assisted",
    AssistedServer,
    AssistedClient,
    requests_in(vars(messages)),
    None,
    AssistedParameters,
    partial(agree_with_helpers, Options()),
    helpers=4,
    assistance=Assistance((1, 2, 3, 4), 1),
    helper=AssistedHelper,
    introduces=Introduce,
    strategies=STRATEGIES,
    configure=configure,
    verifies_selection=True,
)
