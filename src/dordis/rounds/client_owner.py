"""The interface of a client's owner, who must consent before the client answers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Invite


class ClientOwner(Protocol):
    """The owner of a client, who consents to its rounds; if a method raises, the client sends nothing."""

    def accept(self, invite: Invite) -> bytes | None:
        """Return the proof of selection for an invitation, None if the client is not selected; raise to refuse it."""
        ...

    def take_piece(self, count: int) -> None:
        """Consent to piece number `count` of the model; raise if the policy allows no more."""
        ...

    def train(self, invite: Invite) -> None:
        """Count a training durably, before the application gets the model; raise if the policy allows no more."""
        ...

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Raise unless the owner accepts the parameters, and the round's clients were selected by the agreed rule."""
        ...

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count a participation durably before the first upload of a round; a repeated call counts once.

        `machine` is 32 bytes that only this machine has.  Raise if the round was counted for another machine.
        """
        ...

    def conclude(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Record that the whole sum of a round arrived, with the number of survivors of each chunk."""
        ...
