"""What a journal keeps of a client's round beside the answers of the summing protocol, so that it can be restored.

Pieces of the model and delivered sums are kept as the requests that brought them.  Update and input are secret: a
journal erases them with the round.
"""

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Accepted, Invite, SendModel

Kind = TypeVar("Kind", bound=Parameters)


class Event(msgspec.Struct, frozen=True, tag=True):
    """Something that happened to a client in a round."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Invited(Event, frozen=True):
    """The owner consented to an invitation; the round is counted for this machine."""

    invite: Invite
    accepted: Accepted
    machine: bytes


class Trained(Event, frozen=True):
    """The application made an update, and its values for further releases, as doubles."""

    dtype: str
    update: memoryview
    values: dict[str, bytes] | UnsetType = UNSET


class Encoded(Event, Generic[Kind], frozen=True):
    """The update was encoded by the parameters; it counts once the summing protocol has answered its first request."""

    parameters: Kind
    vector: memoryview


def event_kinds(parameters: type[Parameters]) -> Any:
    """Return the union of all events in rounds whose parameters are of this kind."""
    return Invited | SendModel | Trained | Encoded[parameters] | Dispatch | Store  # type: ignore[valid-type]
