"""Before U is fixed: clients are invited, get the model if they lack it, and train; ready clients may be in U.

Clients that are lost here never were in the round: they do not count against its dropout tolerance T.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from msgspec import UNSET, Meta, UnsetType

from dordis.errors import MalformedMessage, ParametersRefused, ProtocolError, UnexpectedRequest
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.protocol import ClientId, Flow, Message, ProtocolServer, Replies, Requests, Resource, Step
from dordis.protocols.limits import (
    FEW_PIECES,
    LARGEST_DIM,
    LARGEST_WEIGHT,
    LONGEST_INVITE,
    LONGEST_REPLAY,
    MOST_CHUNKS,
    MOST_REPLAYS,
    SMALLEST_PIECE,
)
from dordis.protocols.parameters import INDEX_BYTES, RUN_BYTES, Parameters
from dordis.protocols.replies import collect
from dordis.protocols.summing import SummingProtocol
from dordis.rounds import model as models
from dordis.rounds.app import AppForm, RoundInfo, told_number
from dordis.rounds.model import ModelBytes
from dordis.rounds.terms import Terms, check_terms, check_terms_kept

LARGEST_MODEL = 1 << 34
"""Bytes of a model at most."""


class Accepted(Message, frozen=True):
    """My owner consents; `selected` says whether I am due, with the proof if there is one to show.

    Without the model, `holds` is the digest of an earlier one that I have, and from which sums lead on.
    """

    selected: bool
    has_model: bool
    proof: bytes = b""
    holds: bytes | UnsetType = UNSET


class Invite(Message, frozen=True):
    """A round is about to begin: its place in the run, the registry, the terms, and the model it starts from.

    `round` is the run id followed by the round's index; `number` counts the finished rounds, for people.
    """

    reply: ClassVar = Accepted
    longest: ClassVar = LONGEST_INVITE
    round: bytes
    number: int
    protocol: str
    registry: bytes
    dim: int
    """Coordinates of an update."""
    terms: Terms
    model: bytes
    """Digest of the model."""
    model_bytes: int
    dtype: str

    @property
    def info(self) -> RoundInfo:
        """Return the round's facts for the application."""
        run, index = self.round[:RUN_BYTES], int.from_bytes(self.round[RUN_BYTES:], "big")
        return RoundInfo(told_number(self.number, index), index, run, self.terms.clip)


class SumUsed(Message, frozen=True):
    """I have used the sum; this is the digest of the model that I hold now, or nothing."""

    model: bytes


class SendSum(Message, frozen=True):
    """The sum of a round that you missed, as it was delivered: with it the model that you hold becomes the next one.

    Of the parameters there is what decoding needs; `survivors` has |U3| of each chunk, `vector` all chunks in order.
    """

    reply: ClassVar = SumUsed
    bulk: ClassVar = "vector"
    longest: ClassVar = LONGEST_REPLAY
    number: int
    parameters: Parameters
    survivors: Annotated[dict[int, int], Meta(max_length=MOST_CHUNKS)]
    vector: bytes


class PieceReceived(Message, frozen=True):
    """The piece has come."""

    offset: int


class SendModel(Message, frozen=True):
    """A piece of the model."""

    reply: ClassVar = PieceReceived
    bulk: ClassVar = "data"
    offset: int
    data: bytes


class Ready(Message, frozen=True):
    """The update is made."""


class Train(Message, frozen=True):
    """The model is complete: make your update, and keep it."""

    reply: ClassVar = Ready


def check_invite(invite: Invite) -> None:
    """An invitation has the form of one; nothing here costs time or memory."""
    if len(invite.round) != RUN_BYTES + INDEX_BYTES:
        raise MalformedMessage(f"a round id has {RUN_BYTES} bytes of run and {INDEX_BYTES} of index")
    if not 0 <= invite.model_bytes <= LARGEST_MODEL or not 1 <= invite.dim <= LARGEST_DIM:
        raise ParametersRefused(f"a model has 0 to {LARGEST_MODEL} bytes, an update 1 to {LARGEST_DIM} coordinates")
    models.check_dtype(invite.dtype)
    check_terms(invite.terms)


def check_form(invite: Invite, form: AppForm | None) -> None:
    """Model and update have the number type and a length of the installed application, if its form is known."""
    if form is None:
        return
    count, rest = divmod(invite.model_bytes, np.dtype(invite.dtype).itemsize)
    if invite.dtype != form.dtype or rest or count not in form.models or invite.dim not in form.updates:
        raise ParametersRefused(
            f"the invitation has a model of {invite.model_bytes} bytes of '{invite.dtype}' and updates of {invite.dim} "
            f"coordinates; the application installed here has models of {_either(form.models)} numbers of "
            f"'{form.dtype}' and updates of {_either(form.updates)} coordinates: install the run's application"
        )


def _either(lengths: Collection[int]) -> str:
    return " or ".join(map(str, sorted(lengths)))


def check_trainable(model: ModelBytes) -> None:
    """The numbers of the model are finite and not so large that training overflows on ordinary data."""
    values = model.array
    if values.size and not float(np.maximum(values.max(), -values.min())) <= LARGEST_WEIGHT:
        raise ParametersRefused(
            f"the model has numbers that are not finite or beyond {LARGEST_WEIGHT}: this client does not train from it"
        )


def check_protocol(invite: Invite, protocol: SummingProtocol) -> None:
    """The invitation is to the protocol that I speak."""
    if invite.protocol != protocol.name:
        raise ParametersRefused(f"the invitation is to the protocol '{invite.protocol}', not to '{protocol.name}'")


def check_dense(parameters: Parameters, protocol: SummingProtocol) -> None:
    """A graph is sparse only if the protocol's is: an owner who agreed to SecAgg did not agree to a random graph."""
    if parameters.is_sparse and not protocol.sparse:
        raise ParametersRefused(f"the protocol '{protocol.name}' has no sparse graph, and this round has one")


def check_forward(invite: Invite, shown: Mapping[bytes, int]) -> None:
    """No VRF proof was shown under a later index: the server could choose among rounds whose draws it has seen."""
    if invite.info.index < shown.get(invite.info.run, 0):
        raise UnexpectedRequest("this client has shown its lot under a later index of this run")


def check_not_left(invite: Invite, left: Collection[bytes]) -> None:
    """I have not left this round for another one: entered again, it would see two sets of keys of mine."""
    if invite.round in left:
        raise UnexpectedRequest("this client has left the round for another one")


def check_model(invite: Invite, model: ModelBytes) -> None:
    """The model that came is the one that the invitation named: nobody trains from another one than the others."""
    if len(model.data) != invite.model_bytes or model.digest != invite.model:
        raise ProtocolError("the model is not the one that the invitation named")


def check_pieces(invite: Invite, count: int) -> None:
    """The number of pieces is bounded by the length of the model, because each piece is a journal record."""
    most = FEW_PIECES + invite.model_bytes // SMALLEST_PIECE
    if count > most:
        raise UnexpectedRequest(f"piece {count} of a model of {invite.model_bytes} bytes, which may have {most} pieces")


def check_missed(invite: Invite, parameters: Parameters) -> None:
    """The sum is that of an earlier round of the same run: no other leads to the model of the invitation."""
    if parameters.run != invite.info.run or not parameters.index < invite.info.index:
        raise UnexpectedRequest("this sum is not that of an earlier round of the run")


def check_shorter(invite: Invite, count: int, size: int) -> None:
    """The sums so far are few, and shorter than the model: otherwise a server would send that."""
    if count > MOST_REPLAYS or size >= invite.model_bytes:
        raise UnexpectedRequest(f"{count} sums of {size} bytes are too many for a model of {invite.model_bytes}")


def check_same_model(invite: Invite, parameters: Parameters) -> None:
    """The round is agreed on the model that I trained from."""
    if parameters.model != invite.model:
        raise ParametersRefused("the round is for another model than the one of its invitation")


def check_same_round(invite: Invite, parameters: Parameters) -> None:
    """The parameters are for the round that I was invited to."""
    if parameters.round != invite.round:
        raise ParametersRefused("the parameters are for another round than the invitation")


def check_fits(invite: Invite, parameters: Parameters, kind: type[Mechanism] | None = None) -> None:
    """The parameters fit the invitation."""
    check_same_round(invite, parameters)
    check_same_model(invite, parameters)
    check_terms_kept(invite.terms, Terms.from_parameters(parameters, kind))


@dataclass(frozen=True)
class Invitation:
    """The invitation to a round, the model that goes with it, and the invited clients."""

    invite: Invite
    model: ModelBytes
    clients: tuple[ClientId, ...]


@dataclass
class InvitationServer(ProtocolServer[dict[ClientId, bytes]]):
    """Invite clients, send the model where it is missing, and wait for training; output the ready clients' proofs."""

    invitation: Invitation
    since: Callable[[bytes], Sequence[SendSum]] = lambda digest: ()
    """Returns the sums that lead from a model to the present one, where they are shorter than that."""
    accepted: dict[ClientId, Accepted] = field(default_factory=dict)
    ready: tuple[ClientId, ...] = ()

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps in order."""
        return (
            Step(self.invite, Resource.NETWORK),
            Step(self.send_model, Resource.NETWORK),
            Step(self.train, Resource.CLIENT),
        )

    def output(self) -> dict[ClientId, bytes]:
        """Return the proofs of the clients that are ready."""
        return {u: self.accepted[u].proof for u in self.ready}

    def invite(self) -> Flow:
        """Ask who takes part."""
        replies = yield dict.fromkeys(self.invitation.clients, self.invitation.invite)
        answers = collect(self.invitation.clients, Accepted, replies, lambda u, reply: reply)
        self.accepted = {u: answer for u, answer in answers.items() if answer.selected}

    def send_model(self) -> Flow:
        """Send the model, piece by piece, to clients that neither have it nor can compute it from missed sums."""
        there = yield from self._replay()
        receiving = [u for u in self.accepted if u not in there]
        for offset, data in self.invitation.model.pieces():
            if not receiving:
                break
            replies = yield dict.fromkeys(receiving, SendModel(offset, data))
            receiving = list(collect(receiving, PieceReceived, replies, lambda u, reply: reply))
        whole = there.union(receiving)
        self.accepted = {u: answer for u, answer in self.accepted.items() if u in whole}

    def _replay(self) -> Generator[Requests, Replies, set[ClientId]]:
        """Send sums that clients missed, one after the other; return who has the model then."""
        there = {u for u, answer in self.accepted.items() if answer.has_model}
        held = {u: answer.holds for u, answer in self.accepted.items() if u not in there and answer.holds is not UNSET}
        left = {u: sums for u, digest in held.items() if (sums := self.since(digest))}
        while left:
            replies = yield {u: sums[0] for u, sums in left.items()}
            answers = collect(left, SumUsed, replies, lambda u, reply: reply.model)
            self.accepted = {u: answer for u, answer in self.accepted.items() if u not in left or u in answers}
            there |= {u for u, digest in answers.items() if digest == self.invitation.model.digest}
            further = {u: left[u][1:] for u in answers}
            left = {u: sums for u, sums in further.items() if sums and sums[0].parameters.model == answers[u]}
        return there

    def train(self) -> Flow:
        """Have the updates made."""
        if not self.accepted:
            return
        replies = yield dict.fromkeys(self.accepted, Train())
        self.ready = tuple(collect(self.accepted, Ready, replies, lambda u, reply: reply))
