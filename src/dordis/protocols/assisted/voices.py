"""The requests for the mask sum of a set of helpers, and its confirmation by enough members with the same value."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dordis.protocol import ClientId


@dataclass(frozen=True)
class SetValue:
    """The value that a set of helpers reveals: the packed mask sum, and the due pieces of noise seeds."""

    masks: bytes | memoryview = field(repr=False)
    pieces: bytes = field(repr=False)


@dataclass
class SetVoices:
    """The answers of one set's members; a value is confirmed when `needed` members gave its digest."""

    rank: int
    members: tuple[ClientId, ...]
    """The members of the set that can answer, sorted."""
    needed: int
    said: dict[ClientId, bytes] = field(default_factory=dict)
    wholes: dict[bytes, SetValue] = field(default_factory=dict)
    asked_whole: set[ClientId] = field(default_factory=set)
    silent: set[ClientId] = field(default_factory=set)
    caught: set[ClientId] = field(default_factory=set)

    @property
    def confirmed(self) -> bytes | None:
        """Return the digest of the value that `needed` members gave, or None."""
        (digest, count), *_ = Counter(self.said.values()).most_common(1) or [(b"", 0)]
        return digest if count >= self.needed else None

    @property
    def value(self) -> SetValue | None:
        """Return the confirmed value; None until it is confirmed and a member sent it whole."""
        return None if self.confirmed is None else self.wholes.get(self.confirmed)

    @property
    def liars(self) -> frozenset[ClientId]:
        """Return the members that gave another value than the confirmed one, or two values."""
        agreed = self.confirmed
        others = (h for h, digest in self.said.items() if agreed is not None and digest != agreed)
        return frozenset(self.caught.union(others))

    def next_requests(self, load: Mapping[ClientId, int]) -> Mapping[ClientId, bool]:
        """Return the helpers to ask next: True for the whole value, False for its digest.

        None are asked if the whole value is confirmed, or if too few members are left to confirm one.

        `load` counts the requests to each helper for other sets.  Helpers with the least load are asked first, then the
        lowest ids, because sets are in lexicographic order and the lowest ids have the fewest sets to come.
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
        """Record a helper's answer; a helper that gives two different answers is a liar."""
        if value is not None:
            self.asked_whole.add(helper)
        if self.said.get(helper, digest) != digest:
            del self.said[helper]
            self.caught.add(helper)
        elif helper not in self.caught:
            self.said[helper] = digest
            if value is not None:
                self.wholes[digest] = value
