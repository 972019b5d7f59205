"""The privacy gate: counted once before the first upload, charged once before the first disclosure, and never after."""

import pytest

from dordis.errors import BudgetExceeded, UnexpectedRequest
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import CollectInput, PrepareInput, Unmask
from dordis.rounds.privacy_gate import PrivacyGate

CLIENTS = (1, 2, 5)


class Ledger:
    """Write down what a gate asks for, or refuse it."""

    def __init__(self, refuses=""):
        self.lines, self.refuses = [], refuses

    def count(self, clients):
        self._refuse("count")
        self.lines.append(("count", *clients))

    def charge(self, dropped):
        self._refuse("charge")
        self.lines.append(("charge", dict(dropped)))

    def _refuse(self, what):
        if self.refuses == what:
            raise BudgetExceeded(1, 9.0, 6.0)

    def gate(self):
        return PrivacyGate(self.count, self.charge)


def uploads(chunk=0):
    return dict.fromkeys(CLIENTS, CollectInput(chunk))


def disclosures(chunk=0):
    return dict.fromkeys(CLIENTS, Unmask(chunk, b"\x07"))


def test_a_round_is_counted_then_charged_each_once_over_all_chunks():
    ledger = Ledger()
    gate = ledger.gate()
    for requests in (uploads(0), uploads(1), disclosures(0), disclosures(1), uploads(2)):
        gate.admit(requests, lambda: {0: 2})
    assert ledger.lines == [("count", *CLIENTS), ("charge", {0: 2})]


def test_requests_that_neither_ask_for_data_nor_disclose_pass_freely():
    ledger = Ledger()
    gate = ledger.gate()
    for chunk in range(3):
        gate.admit(dict.fromkeys(CLIENTS, PrepareInput(chunk)), dict)
    gate.admit({}, dict)
    assert not ledger.lines


def test_a_refused_count_lets_no_upload_pass_and_is_tried_again():
    ledger = Ledger("count")
    gate = ledger.gate()
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            gate.admit(uploads(), dict)
    ledger.refuses = ""
    gate.admit(uploads(), dict)
    assert ledger.lines == [("count", *CLIENTS)]


def test_a_refused_charge_lets_no_disclosure_pass():
    ledger = Ledger("charge")
    gate = ledger.gate()
    gate.admit(uploads(), dict)
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            gate.admit(disclosures(), dict)
    assert ledger.lines == [("count", *CLIENTS)]


def test_nothing_is_disclosed_before_anybody_was_asked_for_data():
    ledger = Ledger()
    with pytest.raises(UnexpectedRequest, match="before any upload was counted"):
        ledger.gate().admit(disclosures(), dict)
    assert not ledger.lines


def test_secagg_marks_the_requests_that_the_gate_looks_for():
    assert [request.__name__ for request in SECAGG.requests if request.uploads] == ["CollectInput"]
    assert [request.__name__ for request in SECAGG.requests if request.discloses] == [
        "Unmask"
    ]  # nobody answers RemoveNoise before
