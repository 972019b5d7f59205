"""Whoever a client answers to: asked before a round begins, and told before the first upload of it leaves."""

from collections.abc import Mapping
from typing import Protocol

from dordis.errors import ParametersRefused
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import checks
from dordis.protocols.secagg.statements import Registry


class Owner(Protocol):
    """Whoever the client answers to; both may raise, and then nothing leaves."""

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Accept the round: its parameters, and that its clients were selected as they should be."""
        ...

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count a participation, durably, before the first upload of the round; again for the same machine: once.

        `machine` is 32 bytes that only this machine has: a second one in the same round must be refused.
        """
        ...


def ask_consent(
    owner: Owner | None, parameters: Parameters, proofs: Mapping[int, bytes], can_sign: bool, registry: Registry
) -> None:
    """Ask the owner; against a malicious server there must be one, and keys to sign and to verify with."""
    if parameters.is_malicious:
        if owner is None or not can_sign:
            raise ParametersRefused("a malicious server is faced only with an owner's consent and a signing key")
        checks.check_registered(parameters, registry)
    if owner is not None:
        owner.consent(parameters, proofs)
