"""Disputes in assisted rounds: helpers complain about clients, and members of a set of helpers give different values.

A helper names the clients whose boxes, encrypted seeds, are wrong.  A complaint is an *edge* between the helper and a
client: one of the two deviated.  The client is left out of this round and later rounds, unless the helper is evicted.
At most f helpers and at most L clients of the registry are dishonest.  So a client that more than f helpers name has
deviated, and so has a helper that names more than L clients.  The limit is L, not the bound T_C of one round, because
complaints of all rounds of a run are added up; without a known L the server uses T_C.  A party that is proved to have
deviated is evicted.  Each evicted helper lowers f by one, and each evicted client lowers L by one.  No honest party is
ever evicted, and over a run at most f L honest clients are left out.

In each round every set of helpers reveals a *value*: the sum of the masks for this set, and the set's pieces of the
noise seeds to be released.  The value is confirmed when enough members of the set gave the same value.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from dordis.protocol import ClientId

Edge = tuple[int, int]
"""A complaint: a helper, and the client that the helper names."""


class Complaints(msgspec.Struct, frozen=True):
    """Unresolved complaints (`edges`), and the evicted helpers and clients, which were proved to have deviated.

    In the methods, `faulty` is f, the limit of dishonest helpers, and `colluders` is L, the limit of dishonest clients.
    Both are those of the run's beginning, before any party was evicted.
    """

    edges: frozenset[Edge] = frozenset()
    helpers: frozenset[int] = frozenset()
    clients: frozenset[int] = frozenset()

    @property
    def left_out(self) -> frozenset[int]:
        """Return the clients that may not contribute: the evicted ones, and those with an unresolved complaint."""
        return self.clients | {u for _, u in self.edges}

    def with_edges(self, edges: Iterable[Edge], faulty: int, colluders: int) -> "Complaints":
        """Return these and the new complaints `edges`, after evicting the parties that are now proved dishonest."""
        return msgspec.structs.replace(self, edges=self.edges | frozenset(edges))._settled(faulty, colluders)

    def with_liars(self, helpers: Iterable[int], faulty: int, colluders: int) -> "Complaints":
        """Return these complaints after evicting `helpers`, which provably deviated, for example by a false sum."""
        return msgspec.structs.replace(self, helpers=self.helpers | frozenset(helpers))._settled(faulty, colluders)

    def _settled(self, faulty: int, colluders: int) -> "Complaints":
        """Return the complaints after evicting, until nobody is left to evict, all parties with too many complaints.

        A client has too many if more than f helpers name it, a helper if it names more than L clients.  Each helper
        that is evicted already lowers f by one, and each evicted client lowers L by one.
        """
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


@dataclass(frozen=True)
class SetValue:
    """The value that a set of helpers reveals: the packed sum of masks, and the set's pieces of noise seeds."""

    masks: bytes | memoryview = field(repr=False)
    pieces: bytes = field(repr=False)


@dataclass
class SetVoices:
    """The answers of the members of one set of helpers; a value is confirmed if `needed` members gave it."""

    rank: int
    """The index of the set in the parameters' `sets`."""
    members: tuple[ClientId, ...]
    """The members of the set that can answer, sorted."""
    needed: int
    said: dict[ClientId, bytes] = field(default_factory=dict)
    """For each member that answered, the digest of its value."""
    wholes: dict[bytes, SetValue] = field(default_factory=dict)
    """The values that were sent whole, by digest."""
    asked_whole: set[ClientId] = field(default_factory=set)
    """Members that sent their value whole."""
    silent: set[ClientId] = field(default_factory=set)
    """Members that did not answer."""
    caught: set[ClientId] = field(default_factory=set)
    """Members that gave two different values, or a malformed answer."""

    @property
    def confirmed(self) -> bytes | None:
        """Return the digest of the value that at least `needed` members gave, or None if there is none yet."""
        (digest, count), *_ = Counter(self.said.values()).most_common(1) or [(b"", 0)]
        return digest if count >= self.needed else None

    @property
    def value(self) -> SetValue | None:
        """Return the confirmed value; None until it is confirmed and a member sent it whole, not only its digest."""
        return None if self.confirmed is None else self.wholes.get(self.confirmed)

    @property
    def liars(self) -> frozenset[ClientId]:
        """Return the members that gave a malformed answer, two values, or a value other than the confirmed one."""
        agreed = self.confirmed
        others = (h for h, digest in self.said.items() if agreed is not None and digest != agreed)
        return frozenset(self.caught.union(others))

    def next_requests(self, load: Mapping[ClientId, int]) -> Mapping[ClientId, bool]:
        """Return the members of the set to ask next: True asks for the whole value, False for its digest.

        Nobody is asked once a confirmed value was sent whole.  Nobody is asked either if too few members can still
        answer to confirm a value, or if no member is left that can send the confirmed value whole.

        `load` has for each helper the number of sets for which the server already plans to ask it at the same time.
        Members with less load are asked first; among members with equal load, the lowest ids are asked first.  The
        server plans the sets in lexicographic order: later sets have fewer low ids, so high ids are saved for them.
        """
        if self.value is not None:
            return {}
        left = (h for h in self.members if h not in self.silent | self.caught)
        order = sorted(left, key=lambda h: (load.get(h, 0), h))
        if self.confirmed is not None:
            able = [h for h in order if self.said.get(h) == self.confirmed and h not in self.asked_whole]
            return dict.fromkeys(able[:1], True)
        fresh = [h for h in order if h not in self.said]
        most = max(Counter(self.said.values()).values(), default=0)
        if len(fresh) < self.needed - most:
            return {}
        asked = dict.fromkeys(fresh[: self.needed - most], False)
        if not self.wholes:
            asked[fresh[0]] = True
        return asked

    def hear(self, helper: ClientId, digest: bytes, value: SetValue | None = None) -> None:
        """Record the digest of a helper's value, and `value` if sent whole; a helper with two values is `caught`."""
        if value is not None:
            self.asked_whole.add(helper)
        if self.said.get(helper, digest) != digest:
            del self.said[helper]
            self.caught.add(helper)
        elif helper not in self.caught:
            self.said[helper] = digest
            if value is not None:
                self.wholes[digest] = value
