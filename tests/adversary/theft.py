"""An operator who stops the server as soon as it has a sum, so that nothing that comes after is written down."""

import pytest

from dordis.protocols.encoded_sums import DistributedDP
from dordis.rounds.privacy_gate import PrivacyGate


class Stolen(Exception):
    """The server has a sum, and is stopped."""


def stop_at_the_sum(monkeypatch: pytest.MonkeyPatch, stop) -> None:
    """Have `stop` called once a sum, or a chunk of it, is decoded."""

    def stopping(decode):
        def decoded(*arguments):
            decode(*arguments)
            stop()

        return decoded

    for name in ("decode", "decode_chunk"):
        monkeypatch.setattr(DistributedDP, name, stopping(getattr(DistributedDP, name)))


def raise_stolen() -> None:
    raise Stolen


def take_out_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every request pass, uncounted and uncharged."""
    monkeypatch.setattr(PrivacyGate, "admit_upload", lambda gate, clients: None)
    monkeypatch.setattr(PrivacyGate, "admit_arrival", lambda gate, client: None)
    monkeypatch.setattr(PrivacyGate, "admit_disclosure", lambda gate, dropped: None)
