"""Complaints of helpers about clients over a whole run: parties proved wrong are evicted, other clients left out.

A complaint is an edge between a helper and a client: one of the two deviated.  At most f helpers and T_C clients
collude.  So a client that more than f helpers name is wrong, and a helper that names more than T_C clients is wrong.
No honest party is ever evicted, and at most f T_C honest clients are left out over a run.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

Edge = tuple[int, int]
"""A complaint: a helper, and the client that the helper names."""


class Complaints(msgspec.Struct, frozen=True):
    """Unresolved complaints (edges), and the helpers and clients that were proved wrong."""

    edges: frozenset[Edge] = frozenset()
    helpers: frozenset[int] = frozenset()
    clients: frozenset[int] = frozenset()

    @property
    def left_out(self) -> frozenset[int]:
        """Return the clients that may not contribute: those proved wrong, and those with an unresolved complaint."""
        return self.clients | {u for _, u in self.edges}

    def with_edges(self, edges: Iterable[Edge], faulty: int, colluders: int) -> "Complaints":
        """Return the complaints with `edges` added, after evicting the parties that are now proved wrong."""
        return msgspec.structs.replace(self, edges=self.edges | frozenset(edges))._settled(faulty, colluders)

    def with_liars(self, helpers: Iterable[int], faulty: int, colluders: int) -> "Complaints":
        """Return the complaints after evicting `helpers`, which were proved wrong, for example by a false sum."""
        return msgspec.structs.replace(self, helpers=self.helpers | frozenset(helpers))._settled(faulty, colluders)

    def _settled(self, faulty: int, colluders: int) -> "Complaints":
        """Evict, until none is left, each party with more complaints than the other role can have colluders."""
        helpers, clients, edges = set(self.helpers), set(self.clients), set(self.edges)
        while True:
            edges = {(h, u) for h, u in edges if h not in helpers and u not in clients}
            named, naming = Counter(u for _, u in edges), Counter(h for h, _ in edges)
            wrong_clients = {u for u, count in named.items() if count > faulty - len(helpers)}
            if wrong_clients:
                clients |= wrong_clients
                continue
            wrong_helpers = {h for h, count in naming.items() if count > colluders - len(clients)}
            if not wrong_helpers:
                return Complaints(frozenset(edges), frozenset(helpers), frozenset(clients))
            helpers |= wrong_helpers
