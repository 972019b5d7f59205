"""The events in the journal of a client's round, from which the round is restored after a restart.

Pieces of the model and delivered sums are stored as the requests that brought them.  Update and encoded input are
secret, and are erased with the journal of the round.
"""

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Accepted, Invite, SendModel

Kind = TypeVar("Kind", bound=Parameters)


class Event(msgspec.Struct, frozen=True, tag=True):
    """An event of a client's round."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Invited(Event, frozen=True):
    """The owner consented to an invitation; the round may be counted for this machine only."""

    invite: Invite
    accepted: Accepted
    machine: bytes


class Trained(Event, frozen=True):
    """The application computed an update, of number type `dtype`, and the values of further releases, as doubles."""

    dtype: str
    update: memoryview
    values: dict[str, bytes] | UnsetType = UNSET


class Encoded(Event, Generic[Kind], frozen=True):
    """The update was encoded by the parameters; restored only if an answer of the summing protocol is stored too."""

    parameters: Kind
    vector: memoryview


def event_kinds(parameters: type[Parameters]) -> Any:
    """Return the union of all event types, for rounds with parameters of this type."""
    return Invited | SendModel | Trained | Encoded[parameters] | Dispatch | Store  # type: ignore[valid-type]
