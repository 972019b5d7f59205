"""The interface of a client's owner, whose consent a client needs before it answers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Invite


class ClientOwner(Protocol):
    """The owner of a client, who consents to its rounds; every method may raise, and then nothing leaves."""

    def accept(self, invite: Invite) -> bytes | None:
        """Consent to an invitation; return the proof of selection, or None if the client is not selected."""
        ...

    def take_piece(self, count: int) -> None:
        """Consent to piece number `count` of the model; raise if the policy allows no more."""
        ...

    def train(self, invite: Invite) -> None:
        """Count a training durably, before the application gets the model; raise if the policy allows no more."""
        ...

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Accept the round: its parameters, and that its clients were selected as they should be."""
        ...

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count a participation, durably, before the first upload of the round; again for the same machine: once.

        `machine` is 32 bytes that only this machine has: a second one in the same round must be refused.
        """
        ...

    def conclude(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Record that the round's sum arrived whole, with the number of survivors of each chunk."""
        ...
