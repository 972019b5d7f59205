"""How a client obtains the model of a round, and how it restores an open round after a restart.

A client that does not have the model in its cache gets it in one of two ways.  Either the server sends the model in
pieces.  Or the server sends the public sums of the rounds that the client missed, and the client *replays* them: it
computes the present model from its last model and these sums.  The server sends the sums if all together are shorter
than the model.  A client trains only from a model with the digest in the invitation; if replay gives a model with
another digest, the server sends the model in pieces.

After a restart a client restores the open round from the events in its journal.  Pieces of the model and delivered sums
are stored in the journal as the requests that brought them.  The update and its encoding are secret; they are erased
with the journal when the round ends.

`kind` is the class of a third party's mechanism that the owner has installed, or None.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dordis import wire
from dordis.errors import ParametersRefused, ProtocolError, UnexpectedRequest
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import Journal
from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.encoded_sums import Aggregate, DistributedDP
from dordis.protocols.limits import (
    FEW_PIECES,
    LARGEST_WEIGHT,
    MOST_CLIENTS,
    MOST_REPLAYS,
    SMALLEST_PIECE,
    check_ceilings,
)
from dordis.protocols.parameters import Parameters, check_projection, check_vector, extend
from dordis.rounds.app import AppClient, RoundInfo, told_number
from dordis.rounds.invitation import Accepted, ClientOwner, Invite, PieceReceived, SendModel, SendSum, SumUsed
from dordis.rounds.model import LastModel, ModelBytes
from dordis.rounds.user_code import UserCode

Kind = TypeVar("Kind", bound=Parameters)


class Event(msgspec.Struct, frozen=True, tag=True):
    """An event of a client's round, stored in the journal of the round."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Invited(Event, frozen=True):
    """The owner consented to an invitation; `machine` is a random id that the client drew for this round.

    The owner counts the participation for this id, and refuses the same round with another id: on another machine.
    """

    invite: Invite
    accepted: Accepted
    machine: bytes


class Trained(Event, frozen=True):
    """The application computed an update, whose number type is `dtype`.

    `values` has the values of further releases by name, as bytes of 64-bit floats.
    """

    dtype: str
    update: memoryview
    values: dict[str, bytes] | UnsetType = UNSET


class Encoded(Event, Generic[Kind], frozen=True):
    """The update was encoded as the parameters say.

    This event is used after a restart only if the journal also has an answer of the summing protocol.  Otherwise the
    server repeats the parameters, and the update is encoded anew.
    """

    parameters: Kind
    vector: memoryview


def event_kinds(parameters: type[Parameters]) -> Any:
    """Return the union of the types that a client's journal stores as events, for parameters of the type given."""
    return Invited | SendModel | Trained | Encoded[parameters] | Dispatch | Store  # type: ignore[valid-type]


def missed_sum(number: int, parameters: Parameters, sums: Sequence[Dispatch]) -> SendSum:
    """Return the message with the chunks' sums of the finished round number `number`.

    Fields of the parameters that are not needed for decoding are empty.
    """
    bare = replace(extend(parameters, Parameters), variances={}, tables=b"", beacon=b"")
    return SendSum(number, bare, {s.chunk: s.survivors for s in sums}, b"".join(s.vector for s in sums))


class RecentSums:
    """The delivered sums of a run's last rounds, which the server sends to clients that missed them.

    The oldest sums are dropped until the rest, at most `MOST_REPLAYS` sums, are together shorter than the model.
    """

    def __init__(self) -> None:
        self._sums: list[SendSum] = []
        self._length: tuple[int, int] = (0, 0)

    def begin(self, invite: Invite) -> None:
        """Record the lengths of a round's model and update; if one of them has changed, drop the stored sums."""
        length = invite.model_bytes, invite.dim
        if length != self._length:
            self._sums, self._length = [], length

    def keep(self, number: int, parameters: Parameters, sums: Sequence[Dispatch | None]) -> None:
        """Store the sum of the round with this number; if a chunk was not delivered (None), drop all stored sums.

        Replay applies the sums of all missed rounds in order, so older sums are useless once one is missing.
        """
        delivered = [s for s in sums if s is not None]
        if len(delivered) < len(sums):
            self._sums = []
            return
        kept = [*self._sums, missed_sum(number, parameters, delivered)][-MOST_REPLAYS:]
        sizes = list(accumulate(wire.size(s) for s in reversed(kept)))
        fitting = sum(size < self._length[0] for size in sizes)
        self._sums = kept[len(kept) - fitting :]

    @property
    def all(self) -> Sequence[SendSum]:
        """Return the stored sums, oldest first."""
        return tuple(self._sums)

    def since(self, digest: bytes) -> Sequence[SendSum]:
        """Return the sums from the model with this digest to the current one; empty if it is current, or not stored."""
        starts = [place for place, s in enumerate(self._sums) if s.parameters.model == digest]
        return self._sums[starts[-1] :] if starts else ()


def find_held_model(app: AppClient, models: LastModel, invite: Invite) -> bytes | UnsetType:
    """Return the digest of the client's cached model; UNSET if there is none, or if missed sums cannot update it."""
    last = models.last() if app.follows else None
    return UNSET if last is None or last.dtype != invite.dtype else last.digest


class ModelCatchUp:
    """Computes the model of a round from the client's cached model and the sums that the client missed."""

    def __init__(
        self,
        app: AppClient,
        invited: Invited,
        models: LastModel,
        kind: type[Mechanism] | None,
        user_code: UserCode,
    ) -> None:
        self._app, self._invited, self._kind, self._user_code = app, invited, kind, user_code
        holds = invited.accepted.holds
        self._model = None if holds is UNSET else models.get(holds) or models.get(invited.invite.model)
        self._count = self._size = 0

    def take(self, request: SendSum) -> ModelBytes | None:
        """Apply one more missed sum, and return the resulting model; None if it cannot be computed.

        If the round of the sum did not start from the model reached so far, return this model unchanged.  Raise
        UnexpectedRequest if the sum is not of an earlier round of the run, or if the sums so far are more than
        `MOST_REPLAYS`, or together not shorter than the model.
        """
        invite, parameters = self._invited.invite, request.parameters
        check_missed(invite, parameters)
        if self._model is None or parameters.model != self._model.digest:
            return self._model
        self._count, self._size = self._count + 1, self._size + wire.size(request)
        check_shorter(invite, self._count, self._size)
        number = told_number(request.number, parameters.index)
        info = RoundInfo(number, parameters.index, parameters.run, parameters.encoding.clip)
        aggregate = decode_missed_sum(request, invite.dim, self._kind)
        self._model = next_model(self._user_code, self._app, info, self._model, aggregate)
        return self._model


def next_model(
    user_code: UserCode, app: AppClient, info: RoundInfo, model: ModelBytes, aggregate: Aggregate
) -> ModelBytes | None:
    """Return the model that an application computes from the last model and a sum; None if it cannot."""

    def follow() -> ModelBytes | None:
        following = app.next_model(info, model.array, aggregate)
        return None if following is None else ModelBytes.from_numbers(following, model.dtype)

    return user_code.call("next_model of the application", follow)


def decode_missed_sum(request: SendSum, dim: int, kind: type[Mechanism] | None) -> Aggregate:
    """Return the sum in a message as real numbers; raise if the sum does not fit the parameters in the message.

    `dim` is the length of an update; `kind` is the class of a third party's mechanism, None for a mechanism of dordis.
    """
    check_readable(request.parameters)
    private = DistributedDP.from_parameters(request.parameters, dim, kind)
    check_whole(request, private)
    ends = accumulate(map(private.delivered_size, range(len(request.survivors))), initial=0)
    parts = enumerate(request.vector[start:end] for start, end in pairwise(ends))
    return private.assemble([private.decode_delivered(k, part, request.survivors[k]) for k, part in parts])


def check_readable(parameters: Parameters) -> None:
    """Raise ParametersRefused if parameters of a past round exceed a limit, or break a rule that decoding needs."""
    check_ceilings(parameters)
    check_vector(parameters)
    check_projection(parameters)
    if parameters.scheme not in {scheme.value for scheme in Scheme}:
        raise ParametersRefused("there is no such noise scheme")


def check_whole(request: SendSum, private: DistributedDP) -> None:
    """Raise ProtocolError unless each chunk has 1 to `MOST_CLIENTS` survivors, and the sums have the right length."""
    chunks = range(len(private.parameters.chunks))
    if list(request.survivors) != list(chunks) or not all(0 < s <= MOST_CLIENTS for s in request.survivors.values()):
        raise ProtocolError("a sum is over one or more clients in each chunk")
    if len(request.vector) != sum(map(private.delivered_size, chunks)):
        raise ProtocolError("the sum of a missed round is longer or shorter than it was")


def check_missed(invite: Invite, parameters: Parameters) -> None:
    """Raise UnexpectedRequest unless the parameters of a sum are of an earlier round of the run in the invitation."""
    if parameters.run != invite.info.run or not parameters.index < invite.info.index:
        raise UnexpectedRequest("this sum is not of an earlier round of the run")


def check_shorter(invite: Invite, count: int, size: int) -> None:
    """Raise UnexpectedRequest if `count` is above MOST_REPLAYS, or the sums' `size` in bytes not below the model's."""
    if count > MOST_REPLAYS or size >= invite.model_bytes:
        raise UnexpectedRequest(f"{count} sums of {size} bytes are too many for a model of {invite.model_bytes}")


class ModelIntake:
    """Obtains the model of one round, and compares it with the digest in the invitation before training."""

    def __init__(
        self, invited: Invited, models: LastModel, follower: ModelCatchUp, journal: Journal, owner: ClientOwner
    ) -> None:
        self._invite, self._accepted, self._models = invited.invite, invited.accepted, models
        self._follower, self._journal, self._owner = follower, journal, owner
        self.model = models.get(self._invite.model)
        self._pieces, self._count = bytearray(), 0

    def recall(self, piece: SendModel) -> None:
        """Append a piece of the model that was read from the journal; a restarted client appends all, in order."""
        self._count += 1
        self._pieces += piece.data

    def take_piece(self, request: SendModel) -> PieceReceived:
        """Store the next piece of the model; a piece that a restarted server repeats is accepted again.

        Raise UnexpectedRequest for any other piece, and for more pieces than a model of this length may have.
        """
        held = self._pieces if self.model is None or self._accepted.has_model else self.model.data
        start, end, size = request.offset, request.offset + len(request.data), len(held)
        if self.model is None and start == size and 0 < len(request.data) <= self._invite.model_bytes - size:
            check_pieces(self._invite, self._count + 1)
            self._owner.take_piece(self._count + 1)
            self._journal.note(request)
            self._count += 1
            self._pieces += request.data
        elif not 0 <= start < end <= size or held[start:end] != request.data:
            raise UnexpectedRequest(
                f"a piece of the model begins at byte {start}, and {size} bytes have come: pieces are sent in order"
            )
        return PieceReceived(start)

    def replay(self, request: SendSum) -> SumUsed:
        """Apply a missed sum to the client's model, and return the digest of the result; empty if none can be computed.

        The resulting model is cached if it has the digest in the invitation.
        """
        followed = self._follower.take(request)
        if followed is None:
            return SumUsed(b"")
        if self.model is None:
            with suppress(ProtocolError):  # a wrong digest is allowed: more sums or the model follow
                check_model(self._invite, followed)
                self._models.keep(followed)
                self.model = followed
        return SumUsed(followed.digest)

    @property
    def is_whole(self) -> bool:
        """Tell whether all pieces of the model have arrived."""
        return len(self._pieces) == self._invite.model_bytes

    def assemble(self) -> ModelBytes:
        """Return the model of the round, from the cache or put together from its pieces, and cache it.

        Raise ProtocolError if the pieces do not give the digest in the invitation, and ParametersRefused if the model
        contains a number that is not finite or whose magnitude is above `LARGEST_WEIGHT`.
        """
        if self.model is None:
            model = ModelBytes.read(self._invite.dtype, bytes(self._pieces))
            check_model(self._invite, model)
            self.model, self._pieces = model, bytearray()
        check_trainable(self.model)
        self._models.keep(self.model)
        self.model = self._models.get(self._invite.model) or self.model
        return self.model

    def forget(self) -> None:
        """Drop the model and its pieces."""
        self.model, self._pieces = None, bytearray()


def check_pieces(invite: Invite, count: int) -> None:
    """Raise UnexpectedRequest if `count` pieces are too many for the model's length: the journal stores every piece."""
    most = FEW_PIECES + invite.model_bytes // SMALLEST_PIECE
    if count > most:
        raise UnexpectedRequest(f"piece {count} of a model of {invite.model_bytes} bytes, which may have {most} pieces")


def check_model(invite: Invite, model: ModelBytes) -> None:
    """Raise ProtocolError unless a model has the digest in the invitation, so that all clients train from one model."""
    if len(model.data) != invite.model_bytes or model.digest != invite.model:
        raise ProtocolError("the model does not have the digest in the invitation")


def check_trainable(model: ModelBytes) -> None:
    """Raise ParametersRefused if a number of the model is not finite, or so large that training may overflow."""
    if not model.largest <= LARGEST_WEIGHT:
        raise ParametersRefused(
            f"the model has numbers that are not finite or beyond {LARGEST_WEIGHT}: this client does not train from it"
        )
