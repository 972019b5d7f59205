"""The privacy gate: count participations before data is uploaded, charge the ledger before a sum is disclosed.

Every request of every round passes a gate before it leaves, whatever carries the messages: that is the only place at
which a server counts or charges.  What counting and charging mean is the caller's: a run writes to its ledger.
"""

from collections.abc import Callable, Collection, Mapping

from dordis.errors import UnexpectedRequest
from dordis.protocol import ClientId, Requests

Count = Callable[[Collection[ClientId]], None]
"""Count a participation of each client that is asked for data; durable when it returns, and it may raise."""
Dropped = Mapping[int, int]
"""|D| of every chunk whose U3 is closed."""
Charge = Callable[[Dropped], None]
"""Charge the round; durable when it returns, and it may raise."""


def count_nothing(clients: Collection[ClientId]) -> None:
    """Count nothing: there is no ledger."""


def charge_nothing(dropped: Dropped) -> None:
    """Charge nothing: there is no ledger."""


class PrivacyGate:
    """Let the requests of one round pass: count once before the first upload, charge once before the first disclosure.

    >>> gate = PrivacyGate(count=lambda clients: print("counted", *clients), charge=lambda dropped: print("charged"))
    >>> gate.admit_upload([ClientId(1), ClientId(2)])
    counted 1 2
    >>> gate.admit_disclosure(dict)
    charged
    """

    def __init__(self, count: Count = count_nothing, charge: Charge = charge_nothing) -> None:
        self._count, self._charge = count, charge
        self._counted = self._charged = False

    def admit(self, requests: Requests, dropped: Callable[[], Dropped]) -> None:
        """Count or charge what these requests need before they leave; raise what counting or charging raises."""
        kinds = {type(request) for request in requests.values()}
        if any(kind.uploads for kind in kinds):
            self.admit_upload(requests.keys())
        if any(kind.discloses for kind in kinds):
            self.admit_disclosure(dropped)

    def admit_upload(self, clients: Collection[ClientId]) -> None:
        """Count the clients that are about to be asked for data; later chunks of the round are not counted again."""
        if not self._counted:
            self._count(clients)
            self._counted = True

    def admit_disclosure(self, dropped: Callable[[], Dropped]) -> None:
        """Charge the round before anything is disclosed; refuse if nobody was asked for data before."""
        if not self._counted:
            raise UnexpectedRequest("a sum is to be disclosed before any client was asked for its data")
        if not self._charged:
            self._charge(dropped())
            self._charged = True
