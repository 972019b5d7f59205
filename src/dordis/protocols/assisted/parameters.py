"""The parameters that an assisted round adds to those of all protocols: helpers, their keys, and how many may collude.

The checks refuse parameters with which a round would not be secure, or could not be completed.  A round has m helpers,
of which at most f collude with the server; n_min and n_max are the least and the largest number of clients in a sum.
"""

from collections.abc import Collection
from functools import cached_property
from itertools import combinations
from math import comb
from typing import Annotated

import msgspec
from msgspec import Meta

from dordis.errors import ParametersRefused
from dordis.privacy.xnoise_components import Due, Scheme, removal_context
from dordis.protocol import ClientId, Message
from dordis.protocols.limits import LONGEST_SIGNATURE
from dordis.protocols.parameters import Assistance, Parameters, extend
from dordis.protocols.summing import Roster

MOST_SETS = 64
"""Largest number of helper sets, C(m, f) for m helpers of which f may collude: a client adds a mask for each set."""
MOST_EXACT = 64
"""Largest dropout tolerance T with the scheme `exact`: helpers reveal up to T pieces of seeds for every client."""
STRATEGIES = frozenset({"xnoise", "orig", "none"})
SCHEMES = frozenset({Scheme.SINGLE.value, Scheme.EXACT.value, Scheme.ORIG.value, Scheme.NONE.value})


Signature = Annotated[bytes, Meta(max_length=LONGEST_SIGNATURE)]


class EpochKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A helper's public key for the rounds `first` to `last` of a run, signed with the helper's registered key."""

    epoch: int
    """The number of this key in the run; helpers make a key for each round, so it is `first` and `last`, too."""
    first: int
    last: int
    not_after: int
    """When the helper erases the private key at the latest, in seconds since 1970."""
    key: bytes
    signature: Signature


class EpochKeys(Message, frozen=True):
    """The public keys of a helper for the coming rounds, by epoch: the index of the round that a key is for."""

    keys: Annotated[dict[int, EpochKey], Meta(max_length=MOST_SETS)]


class AssistedParameters(Parameters, frozen=True, dict=True, kw_only=True):
    """The parameters that all protocols have, and `helpers`, the helpers H by id, with their keys for this round.

    A helper with the key None cannot take part.  At most `faulty` helpers, f, and T_C clients collude with the server.
    `can_abort` permits fewer than 3 f + 1 helpers in the malicious mode; then f helpers or fewer can stop a round.
    `no_base` permits clients without base noise; then more than f colluding helpers can remove all noise of a client.
    """

    helpers: Annotated[dict[int, EpochKey | None], Meta(max_length=MOST_SETS)]
    faulty: int
    can_abort: bool = False
    no_base: bool = False

    @cached_property
    def members(self) -> tuple[ClientId, ...]:
        """Return the ids of all helpers, H, sorted."""
        return tuple(map(ClientId, sorted(self.helpers)))

    @cached_property
    def present(self) -> tuple[ClientId, ...]:
        """Return the helpers that have a key for this round, sorted."""
        return tuple(h for h in self.members if self.helpers[h] is not None)

    def own_key(self, helper: ClientId) -> EpochKey:
        """Return the key of a helper for this round; raise ParametersRefused if it has none."""
        key = self.helpers.get(helper)
        if key is None:
            raise ParametersRefused(f"helper {helper} has no key for this round")
        return key

    @property
    def quorum(self) -> int:
        """Return q, the number of helpers in a quorum: any two quorums have an honest helper in common."""
        return (len(self.helpers) + self.faulty) // 2 + 1

    @cached_property
    def sets(self) -> tuple[tuple[ClientId, ...], ...]:
        """Return all sets of m - f of the m helpers, in lexicographic order; at least one set has no colluder."""
        return tuple(combinations(self.members, len(self.helpers) - self.faulty))

    @cached_property
    def ranks(self) -> dict[ClientId, tuple[int, ...]]:
        """Return for each helper the sets that the helper is in, by their ranks: their indices in `sets`."""
        return {h: tuple(rank for rank, members in enumerate(self.sets) if h in members) for h in self.members}

    @property
    def voices(self) -> int:
        """Return how many members of a set of helpers must give the same value, so that the server accepts it.

        In the malicious mode this is f + 1, or all members if the set is smaller; in the semi-honest mode it is one.
        """
        return min(self.faulty + 1, len(self.helpers) - self.faulty) if self.is_malicious else 1

    @property
    def assistance(self) -> Assistance:
        return Assistance(tuple(map(int, self.members)), self.faulty, self.no_base)

    def due(self, chunk: int, survivors: Collection[ClientId]) -> Due:
        """Return, for each survivor, the indices of its noise components to remove: the same in every chunk."""
        return self.plans[chunk].due_components(survivors, removal_context(self.round, 0, self.digest))

    def check_own(self) -> None:
        check_helpers(self)
        check_abortable(self)
        check_keys_present(self)
        check_keys_cover(self)
        check_keys_repeated(self)
        check_arrivals(self)
        check_scheme(self)


def check_helpers(parameters: AssistedParameters) -> None:
    """Raise ParametersRefused unless 1 <= f < m and there are at most `MOST_SETS` sets of m - f of the m helpers."""
    m, f = len(parameters.helpers), parameters.faulty
    if not 1 <= f < m or comb(m, f) > MOST_SETS or min(parameters.helpers) < 0:
        raise ParametersRefused(
            f"an assisted round needs 1 <= f < m and at most {MOST_SETS} sets of helpers, not m = {m}, f = {f}"
        )


def check_abortable(parameters: AssistedParameters) -> None:
    """Raise ParametersRefused if f helpers could stop a round in the malicious mode, unless `can_abort` is set."""
    m, f = len(parameters.helpers), parameters.faulty
    if parameters.is_malicious and m < 3 * f + 1 and not parameters.can_abort:
        raise ParametersRefused(
            f"in the malicious mode m >= 3 f + 1 helpers are needed, not m = {m} with f = {f}: add helpers, or set "
            "the protocol's option `abort` if any single helper may stop a round"
        )


def check_keys_present(parameters: AssistedParameters) -> None:
    """Raise ParametersRefused if fewer helpers than a quorum have a key: too few could then agree on U3."""
    missing = len(parameters.helpers) - len(parameters.present)
    if missing > len(parameters.helpers) - parameters.quorum:
        raise ParametersRefused(
            f"{missing} of {len(parameters.helpers)} helpers have no key for this round, and a quorum of "
            f"{parameters.quorum} is needed"
        )


def check_keys_cover(parameters: AssistedParameters) -> None:
    """Raise ParametersRefused if a helper's key is not for this round."""
    for h, key in parameters.helpers.items():
        if key is not None and not 0 <= key.first <= parameters.index <= key.last:
            raise ParametersRefused(f"the key of helper {h} is not for round {parameters.index}")


def check_keys_repeated(parameters: AssistedParameters) -> None:
    """Raise ParametersRefused if two helpers have the same public key: one copied it, and cannot open boxes."""
    keys = [key.key for key in parameters.helpers.values() if key is not None]
    if len(set(keys)) != len(keys):
        raise ParametersRefused("two helpers have the same key")


def check_arrivals(parameters: AssistedParameters) -> None:
    """Raise ParametersRefused if n_min < n_max / 2, or if clients add removable noise without base noise.

    With `no_base` both are permitted.  With n_min < n_max / 2 the scheme `single` needs c = 1 (`fraction`), and with
    c = 1 it has no base noise.
    """
    if parameters.no_base:
        return
    if 2 * parameters.n_min < parameters.n_max:
        raise ParametersRefused(
            f"n_min = {parameters.n_min} is below half of n_max = {parameters.n_max}: more than f helpers could "
            "remove all noise of a client; raise n_min, or set the protocol's option `no_base`"
        )
    if any(plan.removable and not plan.base for plan in parameters.plans):
        raise ParametersRefused(
            f"with c = {parameters.fraction} clients add no base noise: more than f helpers could remove all noise of "
            "a client; set the protocol's option `no_base` to permit it"
        )


def check_scheme(parameters: AssistedParameters) -> None:
    """Raise ParametersRefused if helpers do not support the noise scheme, or T is too large for the scheme `exact`."""
    if parameters.scheme not in SCHEMES:
        raise ParametersRefused(f"assisted rounds have no noise scheme '{parameters.scheme}'")
    if parameters.scheme == Scheme.EXACT.value and parameters.tolerance > MOST_EXACT:
        raise ParametersRefused(f"with the scheme 'exact' T is at most {MOST_EXACT}, not {parameters.tolerance}")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings `protocol.options` of the assisted protocol."""

    helpers: Annotated[int, Meta(ge=0)] | tuple[int, ...] = 0
    """The ids of the helpers, or their number m, for the ids 1 to m; 0 means 3 f + 1 helpers against a malicious
    server, else 2 f + 1."""
    faulty: Annotated[int, Meta(ge=1)] = 1
    """The number of helpers, f, that may collude with the server."""
    abort: bool = False
    """Whether fewer than 3 f + 1 helpers are allowed against a malicious server: f of them, or even one, can then stop
    a round."""
    no_base: bool = False
    """Whether clients may add no base noise, and n_min may be below n_max / 2: then more than f colluding helpers could
    see an update without noise."""


def agree_with_helpers(options: Options, common: Parameters, roster: Roster) -> AssistedParameters:
    """Return the parameters of a round, unchecked: `common`, the helpers with their keys, and the options."""
    helpers = {int(h): _key_for(common.index, reply) for h, reply in sorted(roster.introductions.items())}
    return extend(
        common,
        AssistedParameters,
        helpers=helpers,
        faulty=options.faulty,
        can_abort=options.abort,
        no_base=options.no_base,
    )


def _key_for(index: int, reply: Message) -> EpochKey | None:
    keys = reply.keys.values() if isinstance(reply, EpochKeys) else ()
    return next((key for key in keys if key.first <= index <= key.last), None)
