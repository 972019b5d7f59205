"""Collection of replies by the server, one from each client; a malformed reply counts as a dropout and as a lie."""

from collections.abc import Callable, Collection
from typing import TypeVar

from dordis.errors import CryptoError, InputError, MalformedMessage, ProtocolError, TooFewClients, TooManyDropouts
from dordis.protocol import ClientId, Message, Replies
from dordis.protocols.cohort import CohortParameters

Reply = TypeVar("Reply", bound=Message)
Parsed = TypeVar("Parsed")


def collect(
    asked: Collection[ClientId],
    kind: type[Reply],
    replies: Replies,
    check: Callable[[ClientId, Reply], Parsed],
    liars: set[ClientId] | None = None,
) -> dict[ClientId, Parsed]:
    """Return the checked reply of each client, by id; clients whose reply fails its check are added to `liars`.

    `check` returns the parsed reply or raises.
    """
    accepted: dict[ClientId, Parsed] = {}
    for u, reply in replies:
        if u in accepted or u not in asked:
            continue
        try:
            accepted[u] = check(u, of_kind(kind, reply))
        except (ProtocolError, CryptoError, InputError):
            catch(u, set() if liars is None else liars)
    return dict(sorted(accepted.items()))


def catch(u: ClientId, liars: set[ClientId]) -> None:
    """Add a client to `liars`: it sent a message that no honest client sends."""
    liars.add(u)


def of_kind(kind: type[Reply], reply: Message) -> Reply:
    """Return a reply of the expected kind; raise MalformedMessage for any other kind."""
    if not isinstance(reply, kind):
        raise MalformedMessage(f"this is a {type(reply).__name__}, not a {kind.__name__}")
    return reply


def ensure_enough(
    parameters: CohortParameters, stage: str, clients: Collection[ClientId], liars: Collection[ClientId] = ()
) -> None:
    """Raise TooManyDropouts if more than T clients are missing at a stage, TooFewClients if no quorum remains."""
    dropped, named = len(parameters.clients) - len(clients), frozenset(liars)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance, named)
    if len(clients) < parameters.quorum:
        raise TooFewClients(stage, len(clients), parameters.quorum, named)
