"""How the server takes replies: one from each client asked; a malformed one counts as a dropout."""

from collections.abc import Callable, Collection
from typing import TypeVar

from dordis.errors import CryptoError, InputError, ProtocolError, TooFewClients, TooManyDropouts
from dordis.protocol import ClientId, Message, Replies
from dordis.protocols.parameters import Parameters

Reply = TypeVar("Reply", bound=Message)
Parsed = TypeVar("Parsed")


def collect(
    asked: Collection[ClientId],
    kind: type[Reply],
    replies: Replies,
    check: Callable[[ClientId, Reply], Parsed],
) -> dict[ClientId, Parsed]:
    """Take one reply of the right kind from each client asked; a malformed one counts as a dropout."""
    accepted: dict[ClientId, Parsed] = {}
    for u, reply in replies:
        if u in accepted or u not in asked or not isinstance(reply, kind):
            continue
        try:
            accepted[u] = check(u, reply)
        except (ProtocolError, CryptoError, InputError):
            continue
    return dict(sorted(accepted.items()))


def ensure_enough(parameters: Parameters, stage: str, clients: Collection[ClientId]) -> None:
    """End the round if too many clients are lost to go on."""
    dropped = len(parameters.clients) - len(clients)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance)
    if len(clients) < parameters.quorum:
        raise TooFewClients(stage, len(clients), parameters.quorum)
