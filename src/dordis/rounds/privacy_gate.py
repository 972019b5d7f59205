"""The privacy gate: it counts participations before uploads, and charges the ledger before a disclosure.

Every request of a summing protocol passes the gate of its round before it leaves, whichever exchange carries it.  In
assisted rounds a client is counted when its contribution arrives, before the contribution is acknowledged.  A server
counts and charges nowhere else.  The caller supplies the functions that count and charge; a run supplies functions that
write to its ledger.
"""

from collections.abc import Callable, Collection, Mapping

from dordis.errors import UnexpectedRequest
from dordis.protocol import ClientId, Requests

Count = Callable[[Collection[ClientId]], None]
"""Counts one participation of each of these clients; the count is stored for good when this returns.  It may raise."""
Dropped = Mapping[int, int]
"""The number of dropouts by chunk, for all chunks whose survivors U3 are fixed."""
Charge = Callable[[Dropped], None]
"""Charges the round, given the dropouts by chunk; the charge is stored for good when this returns.  It may raise."""


class PrivacyGate:
    """Counts the participations of a round before its first upload, and charges the round before its first disclosure.

    In assisted rounds it counts a participation when the contribution has arrived, before this is acknowledged.  By
    default it counts and charges nothing, for rounds without a ledger.

    >>> gate = PrivacyGate(count=lambda clients: print("counted", *clients), charge=lambda dropped: print("charged"))
    >>> gate.admit_upload([ClientId(1), ClientId(2)])
    counted 1 2
    >>> gate.admit_disclosure(dict)
    charged
    """

    def __init__(self, count: Count = lambda clients: None, charge: Charge = lambda dropped: None) -> None:
        self._count, self._charge = count, charge
        self._counted = self._charged = False

    def admit(self, requests: Requests, dropped: Callable[[], Dropped]) -> None:
        """Count participations before requests for uploads leave; charge the round before disclosure requests leave.

        `dropped` is called only for a charge; it returns the number of dropouts by chunk.
        """
        kinds = {type(request) for request in requests.values()}
        if any(kind.uploads for kind in kinds):
            self.admit_upload(requests.keys())
        if any(kind.discloses for kind in kinds):
            self.admit_disclosure(dropped)

    def admit_upload(self, clients: Collection[ClientId]) -> None:
        """Count a participation of each client before its first upload; later chunks of the round count no more."""
        if not self._counted:
            self._count(clients)
            self._counted = True

    def admit_arrival(self, client: ClientId) -> None:
        """Count a participation of a client that sent its contribution, before the contribution is acknowledged."""
        self._count([client])
        self._counted = True

    def admit_disclosure(self, dropped: Callable[[], Dropped]) -> None:
        """Charge the round before its first disclosure; raise UnexpectedRequest if no upload was counted before.

        `dropped` returns the dropouts to charge for; it is called only if the round is not charged yet.
        """
        if not self._counted:
            raise UnexpectedRequest(
                "a disclosure was requested before any upload was counted: admit the uploads of the round first"
            )
        if not self._charged:
            self._charge(dropped())
            self._charged = True
