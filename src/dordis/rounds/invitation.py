"""The invitation stage, before a round's clients are fixed: clients are invited, get a model they lack, and train.

The parameters of a round are fixed only after clients have trained.  So the server promises terms in the invitation,
which are bounds on these parameters.  A client's owner (`ClientOwner`) must consent before the client answers, and
again when the parameters are known.  Clients that are lost in this stage were never in the round: they do not count
against the round's dropout tolerance T.  `kind` is the class of a third party's mechanism that the owner has installed,
or None.
"""

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, ClassVar, Protocol

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from dordis.errors import MalformedMessage, ParametersRefused, UnexpectedRequest
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.record_encoding import RecordEncoding
from dordis.protocol import ClientId, Flow, Message, ProtocolServer, Replies, Requests, Resource, Step
from dordis.protocols.costs import round_cost
from dordis.protocols.limits import LARGEST_DIM, LONGEST_INVITE, LONGEST_REPLAY, MOST_CHUNKS
from dordis.protocols.parameters import INDEX_BYTES, RUN_BYTES, Parameters
from dordis.protocols.summing import SummingProtocol, collect
from dordis.rounds import model as models
from dordis.rounds.app import AppForm, RoundInfo, told_number
from dordis.rounds.model import ModelBytes

LARGEST_MODEL = 1 << 34
"""Largest size of a model in bytes."""
_SAME = ("mode", "mechanism", "scheme", "clip", "records", "further")


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds on the parameters of a round that the server promises in the invitation, before parameters exist.

    The fields are in the order in which an owner's policy checks them.
    """

    mode: str
    clients: int
    """Least number of clients of the round."""
    colluders: int
    """Least T_C, the number of colluders of the round that the noise is planned for."""
    bits: int
    """Largest number of bits of a coordinate."""
    mechanism: str
    scheme: str
    clip: float
    """The largest norm of an update; if records are the unit of privacy, of a record's gradient."""
    cost: float
    """The largest cost of the round for a client, theta^2 in Gaussian DP; infinite if no epsilon is proved."""
    records: RecordEncoding | UnsetType = UNSET
    """Sampling and encoding of records, if they are the unit of privacy; sampling then does not reduce `cost`."""
    further: tuple[str, ...] | UnsetType = UNSET
    """Names of the application's further releases; left out if there are none."""

    @classmethod
    def from_parameters(cls, parameters: Parameters, kind: type[Mechanism] | None = None) -> "Terms":
        """Return the strictest terms that these parameters keep.

        `kind` is the class of the mechanism if a third party wrote it, else None.
        """
        return parameters.once(("terms", kind), lambda: cls._read(parameters, kind))

    @classmethod
    def _read(cls, parameters: Parameters, kind: type[Mechanism] | None) -> "Terms":
        return cls(
            mode=parameters.mode,
            clients=parameters.cohort,
            colluders=parameters.colluders,
            bits=parameters.bits,
            mechanism=parameters.encoding.mechanism,
            scheme=parameters.scheme,
            clip=parameters.encoding.clip,
            cost=round_cost(parameters, kind).theta_squared,
            records=parameters.encoding.records,
            further=tuple(release.name for release in parameters.encoding.further or ()) or UNSET,
        )

    def promised(self, clients: int, cost: float) -> "Terms":
        """Return these terms with other bounds: at least `clients` clients, and a cost of at most `cost`."""
        return msgspec.structs.replace(self, clients=clients, cost=cost)

    @property
    def ratio(self) -> Fraction | None:
        """Return an upper bound on the least ratio of noise variance to squared sensitivity among the round's releases.

        It holds for a round that costs as much as these terms allow, the theta^2 `cost`; cheaper rounds may have larger
        ratios.  The releases are the update, perhaps a clipping bit, and the application's further releases.  At least
        one of k releases costs `cost` / k or more, and then its ratio is at most 1/2 + k / `cost`.  Return None unless
        the noise is Skellam noise: other noise may have a stated cost far above 1 / ratio, even infinite.
        """
        if self.mechanism != "skellam":
            return None
        releases = 2 + len(self.further or ())
        return Fraction(1, 2) if math.isinf(self.cost) else Fraction(1, 2) + releases / Fraction(self.cost)


class Accepted(Message, frozen=True):
    """The answer to an invitation that the owner does not refuse.

    `selected` tells whether the client is selected for the round, and `proof` proves it if the selection needs a proof.
    If the client lacks the model, `holds` is the digest of its last model, to which it can apply missed sums.
    """

    selected: bool
    has_model: bool
    proof: bytes = b""
    holds: bytes | UnsetType = UNSET


class Invite(Message, frozen=True):
    """The invitation to a round: which round of which run, the root of the registry, the terms, and the model's digest.

    `round` is the run id followed by the round's index; `number`, for display, is 1 plus the number of finished rounds.
    """

    reply: ClassVar = Accepted
    longest: ClassVar = LONGEST_INVITE
    round: bytes
    number: int
    protocol: str
    registry: bytes
    dim: int
    """Number of coordinates of an update."""
    terms: Terms
    model: bytes
    """Digest of the model from which clients train."""
    model_bytes: int
    dtype: str

    @property
    def info(self) -> RoundInfo:
        """Return the round as the client's application sees it."""
        run, index = self.round[:RUN_BYTES], int.from_bytes(self.round[RUN_BYTES:], "big")
        return RoundInfo(told_number(self.number, index), index, run, self.terms.clip)


class SumUsed(Message, frozen=True):
    """The reply to a missed sum: `model` is the digest of the model after this sum; empty if it cannot be computed."""

    model: bytes


class SendSum(Message, frozen=True):
    """The sum of a round that the client missed, from which the client computes the model after that round.

    `parameters` has what decoding needs, `survivors` the number of survivors by chunk, and `vector` the delivered bytes
    of all chunks one after the other.
    """

    reply: ClassVar = SumUsed
    bulk: ClassVar = "vector"
    longest: ClassVar = LONGEST_REPLAY
    number: int
    parameters: Parameters
    survivors: Annotated[dict[int, int], Meta(max_length=MOST_CHUNKS)]
    vector: bytes


class PieceReceived(Message, frozen=True):
    """The client has received the piece of the model that begins at byte `offset`."""

    offset: int


class SendModel(Message, frozen=True):
    """A piece of the model: the bytes `data` from byte `offset` on."""

    reply: ClassVar = PieceReceived
    bulk: ClassVar = "data"
    offset: int
    data: bytes


class Ready(Message, frozen=True):
    """The reply to `Train`, which is the same whether training succeeded or failed and gave a zero update."""


class Train(Message, frozen=True):
    """The request to train, sent when the client has the whole model: the client computes its update and stores it."""

    reply: ClassVar = Ready


def check_invite(invite: Invite) -> None:
    """Raise unless the fields of an invitation are in range."""
    if len(invite.round) != RUN_BYTES + INDEX_BYTES:
        raise MalformedMessage(f"a round id has {RUN_BYTES} bytes of run and {INDEX_BYTES} of index")
    if not 0 <= invite.model_bytes <= LARGEST_MODEL or not 1 <= invite.dim <= LARGEST_DIM:
        raise ParametersRefused(f"a model has 0 to {LARGEST_MODEL} bytes, an update 1 to {LARGEST_DIM} coordinates")
    models.check_dtype(invite.dtype)
    check_terms(invite.terms)


def check_form(invite: Invite, form: AppForm | None) -> None:
    """Raise ParametersRefused unless number type and lengths in the invitation fit `form`, the installed application's.

    With None every invitation passes.
    """
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


def check_protocol(invite: Invite, protocol: SummingProtocol) -> None:
    """Raise ParametersRefused if the invitation is to another protocol than this client's."""
    if invite.protocol != protocol.name:
        raise ParametersRefused(f"the invitation is to the protocol '{invite.protocol}', not to '{protocol.name}'")


def check_dense(parameters: Parameters, protocol: SummingProtocol) -> None:
    """Raise ParametersRefused if the round has a sparse graph, but this client's protocol allows none.

    The owner of a client with SecAgg, for example, did not agree to share masks on a random graph, as in SecAgg+.
    """
    if parameters.is_sparse and not protocol.sparse:
        raise ParametersRefused(f"the protocol '{protocol.name}' has no sparse graph, and this round has one")


def check_forward(invite: Invite, shown: Mapping[bytes, int]) -> None:
    """Raise UnexpectedRequest if this client has shown a VRF proof under a later index of the run.

    `shown` has, by run id, the last index under which it showed a proof.  Without this check the server could learn the
    selections of several indices first, and then run the round that suits it.
    """
    if invite.info.index < shown.get(invite.info.run, 0):
        raise UnexpectedRequest("this client has shown its VRF proof under a later index of this run")


def check_not_left(invite: Invite, left: Collection[bytes]) -> None:
    """Raise UnexpectedRequest if the round is one of `left`, the round ids of the rounds that this client has left.

    To enter a round again would need a second set of keys.
    """
    if invite.round in left:
        raise UnexpectedRequest("this client has left the round for another one")


def check_terms(terms: Terms) -> None:
    """Raise ParametersRefused unless the cost in the terms is a number above 0."""
    if not terms.cost > 0:
        raise ParametersRefused("the cost in an invitation is a number above 0")


def check_terms_kept(promised: Terms, kept: Terms) -> None:
    """Raise ParametersRefused unless `kept`, the terms of a round's parameters, are within its `promised` terms."""
    same = all(getattr(promised, name) == getattr(kept, name) for name in _SAME)
    enough = kept.clients >= promised.clients and kept.colluders >= promised.colluders
    if not (same and enough and kept.bits <= promised.bits and kept.cost <= promised.cost):
        raise ParametersRefused("the parameters of the round are not what its invitation promised")


def check_same_model(invite: Invite, parameters: Parameters) -> None:
    """Raise ParametersRefused if the parameters have another digest of the model than the invitation."""
    if parameters.model != invite.model:
        raise ParametersRefused("the round is for another model than the one of its invitation")


def check_same_round(invite: Invite, parameters: Parameters) -> None:
    """Raise ParametersRefused if the parameters are for another round than the invitation."""
    if parameters.round != invite.round:
        raise ParametersRefused("the parameters are for another round than the invitation")


def check_fits(invite: Invite, parameters: Parameters, kind: type[Mechanism] | None = None) -> None:
    """Raise ParametersRefused unless the parameters have the round and model of the invitation and keep its terms.

    `kind` is the class of a third party's mechanism, None for a mechanism of dordis.
    """
    check_same_round(invite, parameters)
    check_same_model(invite, parameters)
    check_terms_kept(invite.terms, Terms.from_parameters(parameters, kind))


@dataclass(frozen=True)
class Invitation:
    """The invitation to a round, its model, and the invited clients."""

    invite: Invite
    model: ModelBytes
    clients: tuple[ClientId, ...]


@dataclass
class InvitationServer(ProtocolServer[dict[ClientId, bytes]]):
    """The server's state machine of the invitation stage; its output is the ready clients' proofs of selection."""

    invitation: Invitation
    since: Callable[[bytes], Sequence[SendSum]] = lambda digest: ()
    """Returns the sums that lead from the model with a digest to the present model; empty if one is not stored."""
    accepted: dict[ClientId, Accepted] = field(default_factory=dict)
    ready: tuple[ClientId, ...] = ()

    @property
    def workflow(self) -> Sequence[Step]:
        return (
            Step(self.invite, Resource.NETWORK),
            Step(self.send_model, Resource.NETWORK),
            Step(self.train, Resource.CLIENT),
        )

    def output(self) -> dict[ClientId, bytes]:
        return {u: self.accepted[u].proof for u in self.ready}

    def invite(self) -> Flow:
        """Invite the clients, and record those that accept."""
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
        """Send the sums that clients missed, one after the other; return all clients that have the model afterwards."""
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
        """Ask the clients to train, and record those that are ready."""
        if not self.accepted:
            return
        replies = yield dict.fromkeys(self.accepted, Train())
        self.ready = tuple(collect(self.accepted, Ready, replies, lambda u, reply: reply))


class ClientOwner(Protocol):
    """The owner of a client, who consents to its rounds; if a method raises, the client refuses the request."""

    def accept(self, invite: Invite) -> bytes | None:
        """Return the proof of selection (empty if none is needed), None if not selected; raise to refuse `invite`."""

    def take_piece(self, count: int) -> None:
        """Raise if the policy allows fewer than `count` pieces of a model."""

    def train(self, invite: Invite) -> None:
        """Count a training on disk, before the application gets the model; raise if the policy forbids it."""

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Raise unless the owner accepts the parameters, and the round's clients were selected by the agreed rule."""

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count a participation on disk, before the first upload of a round; several calls for a round count once.

        `machine` is a random id from the journal of the round.  Raise if the round was counted with another id.
        """

    def conclude(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Record that the sums of all chunks of a round arrived; `survivors` has the number of survivors by chunk."""
