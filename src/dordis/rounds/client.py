"""The client: one object answers the server's messages in all rounds, and calls the application on the client's data.

A round has these steps: invitation, to which the owner consents; model; training; parameters, to which the owner
consents too; encoding; summing protocol; delivery of the sum.  No data are used before the first consent.  After an
unexpected message the client leaves the round for good.  A restarted client resumes an open round from the journal on
disk (`Client.restore`).
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import UNSET

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import Aborted, NotReady, ProtocolError, UnexpectedRequest
from dordis.kernels.ring import Vector
from dordis.privacy.clipping import CLIPPING_BIT
from dordis.privacy.encoding import Entropy
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.record_encoding import RecordEncoding
from dordis.protocol import ClientId, Journal, MemoryJournal, Message
from dordis.protocols import parameters as rules
from dordis.protocols.delivery import DeliveryClient, Dispatch, Store
from dordis.protocols.encoded_sums import Aggregate, DistributedDP
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import Opening, SummingClient, SummingProtocol
from dordis.rounds import catch_up
from dordis.rounds import invitation as checks
from dordis.rounds.app import AppClient, AppForm
from dordis.rounds.catch_up import Encoded, Invited, ModelCatchUp, ModelIntake, Trained, event_kinds
from dordis.rounds.invitation import Accepted, ClientOwner, Invite, Ready, SendModel, SendSum, Train
from dordis.rounds.model import LastModel
from dordis.rounds.records import RecordSum, as_record_client, check_event, sum_for_round
from dordis.rounds.user_code import Prepared, UserCode, prepare, zero_update

MACHINE_BYTES = 32
EARLY = (SendModel, SendSum, Train, Opening)
"""Requests that a client accepts between the invitation and the summing protocol, which `Opening` begins."""


class Client:
    """One client in all rounds of a federation: its application, owner and keys, and a journal for every round.

    `mechanism` is a third party's class, installed by the owner; no server can make a client load one.  `user_code`
    decides what a failure of the application does: stop the run (`UserCode`, the default), or give a zero update
    and tell the owner (`ZeroOnFailure`, for deployments).  With a `form` the client refuses invitations with models or
    updates of other lengths.  With records as the unit of privacy, the sum of gradients is in memory only: a client
    that restarts between `Train` and the encoding leaves the round.  With `sums_at_opening` it can restart, because it
    computes this sum when the parameters arrive.
    """

    def __init__(
        self,
        me: ClientId,
        app: AppClient,
        owner: ClientOwner,
        protocol: SummingProtocol,
        *,
        signing: bytes = b"",
        registry: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
        mechanism: type[Mechanism] | None = None,
        journals: Callable[[bytes], Journal] = lambda round: MemoryJournal(),
        models: LastModel | None = None,
        entropy: Entropy = secrets.token_bytes,
        user_code: UserCode | None = None,
        form: AppForm | None = None,
        sums_at_opening: bool = False,
    ) -> None:
        self.me, self.app, self.owner, self.protocol = me, app, owner, protocol
        self.signing, self.registry, self.suite = signing, registry or {}, suite
        self.members = self.registry
        """Signing keys of all members of the run; `registry` lacks keys that were revoked after the run began."""
        self.mechanism, self.journals, self.entropy, self.form = mechanism, journals, entropy, form
        self.sums_at_opening = sums_at_opening
        self.user_code = UserCode() if user_code is None else user_code
        self.events = event_kinds(protocol.parameters)
        self.models = LastModel() if models is None else models
        self.round: ClientRound | None = None
        self._left, self._shown = set[bytes](), dict[bytes, int]()

    def __repr__(self) -> str:
        return f"<Client {self.me}>"

    def check_expected(self, kind: type[Message], size: int = 0) -> None:
        """Raise UnexpectedRequest unless a message of type `kind`, with `size` bytes in its large field, is allowed."""
        round = self.round
        begun = round is not None and round.summing is not None
        if not (begun or issubclass(kind, Invite) or (round is not None and issubclass(kind, EARLY))):
            raise UnexpectedRequest(f"{kind.__name__} came before the round began")
        most = 0 if round is None else round.most_bytes(kind)
        if size > most:
            raise UnexpectedRequest(f"{kind.__name__} comes with {size} bytes; this round allows at most {most}")

    def handle(self, request: Message) -> Message:
        """Return the reply to a request; raise if the client refuses it."""
        if isinstance(request, Invite):
            return self._invited(request)
        if self.round is None:
            raise UnexpectedRequest(f"{type(request).__name__} came before an invitation")
        return self.round.handle(request)

    def close(self) -> None:
        """Leave the open round, if any, for good."""
        if self.round is not None:
            self.round.close()

    def stop(self) -> None:
        """Stop, but do not leave the open round: it can be resumed from its journal, also in another process."""
        if self.round is not None:
            self.round.stop()
            self.round = None
        self.user_code.stop()

    def _invited(self, invite: Invite) -> Accepted:
        """Return the answer to an invitation, after the owner's consent; leave any other open round for good."""
        if self.round is not None and self.round.invite.round == invite.round:
            return self.round.accepted_again(invite)
        checks.check_invite(invite)
        checks.check_form(invite, self.form)
        checks.check_protocol(invite, self.protocol)
        checks.check_not_left(invite, self._left)
        proof = self.owner.accept(invite)
        if proof is not None:
            self._check_ready(invite)
        if proof != b"":  # selection was by VRF
            checks.check_forward(invite, self._shown)
            self._shown[invite.info.run] = invite.info.index
        if self.round is not None:
            self.close()
            self._left.add(self.round.invite.round)
        self.round = None
        if proof is None:
            return Accepted(selected=False, has_model=False)
        journal = self.journals(invite.round)
        if journal.events(self.events):
            self.round = ClientRound.restored(self, journal)
            return self.round.accepted_again(invite)
        self.round = ClientRound.entered(self, journal, invite, proof)
        return self.round.accepted

    def _check_ready(self, invite: Invite) -> None:
        """Raise NotReady if the application is not ready; after this no client declines a round because of its data."""
        if getattr(self.app.is_ready, "__func__", None) is AppClient.is_ready:
            return  # the default, always True: nothing to hide, and no time window to wait for
        if not self.user_code.ask("is_ready of the application", lambda: self.app.is_ready(invite.info)):
            raise NotReady(f"the application of client {self.me} is not ready for round {invite.number}")

    def restore(self, round: bytes) -> None:
        """Continue from its journal the round with the id `round`, which was open when the process stopped."""
        journal = self.journals(round)
        if journal.events(self.events):
            self.round = ClientRound.restored(self, journal)
        else:  # nothing was sent yet, so the server repeats the invitation
            journal.release()


class ClientRound:
    """One round of a client, from its invitation to the delivery of the sum."""

    def __init__(self, client: Client, journal: Journal, invited: Invited) -> None:
        self._client, self._journal, self._machine = client, journal, invited.machine
        self.invite, self.accepted = invited.invite, invited.accepted
        follower = ModelCatchUp(client.app, invited, client.models, client.mechanism, client.user_code)
        self._intake = ModelIntake(invited, client.models, follower, journal, client.owner)
        self._update: Prepared | RecordSum | None = None
        self._parameters: Parameters | None = None
        self.summing: SummingClient[Any] | None = None
        self._delivering: DeliveryClient | None = None
        self._closed = self._used = False

    @classmethod
    def entered(cls, client: Client, journal: Journal, invite: Invite, proof: bytes) -> "ClientRound":
        """Begin a round to which the owner has consented, and note it in the journal; `proof` proves the selection."""
        has_model = client.models.get(invite.model) is not None or not invite.model_bytes
        holds = UNSET if has_model else catch_up.find_held_model(client.app, client.models, invite)
        accepted = Accepted(selected=True, has_model=has_model, proof=proof, holds=holds)
        invited = Invited(invite, accepted, client.entropy(MACHINE_BYTES))
        journal.note(invited)
        return cls(client, journal, invited)

    @classmethod
    def restored(cls, client: Client, journal: Journal) -> "ClientRound":
        """Return the round as it was when the process stopped; answers not in the journal are computed anew."""
        invited, *events = journal.events(client.events)
        restored = cls(client, journal, invited)
        for event in events:
            restored._recall(event)
        return restored

    def _recall(self, event: SendModel | Trained | Encoded[Any] | Dispatch | Store) -> None:
        match event:
            case SendModel():
                self._intake.recall(event)
            case Trained():
                if self._intake.is_whole:
                    self._intake.assemble()
                values = {name: np.frombuffer(value) for name, value in (event.values or {}).items()}
                self._update = Prepared(np.frombuffer(event.update, event.dtype), values)
            case Encoded() if self._journal.since(0):
                self._update = None
                private = DistributedDP.from_parameters(event.parameters, self.invite.dim, self._client.mechanism)
                self._enter(private, np.frombuffer(event.vector, "<u4"))
            case Dispatch() | Store() if self._delivering is not None:
                self._delivering.handle(event)

    def most_bytes(self, kind: type[Message]) -> int:
        """Return the largest size of the bulk field of a request of this type, in bytes."""
        if issubclass(kind, SendModel | SendSum):
            return self.invite.model_bytes
        return self._delivering.longest if issubclass(kind, Dispatch) and self._delivering is not None else 0

    def handle(self, request: Message) -> Message:
        """Return the reply to a request; if this client refuses the request, leave the round and raise."""
        try:
            if self._closed:
                raise Aborted("this client has left the round")
            return self._answer(request)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the round, whether it succeeded or not, and erase its secrets and data."""
        self._closed = True
        self._update = None
        self._intake.forget()
        self._journal.close()
        for machine in (self.summing, self._delivering):
            if machine is not None:
                machine.close()

    def stop(self) -> None:
        """Answer no more requests, and keep the journal, from which the round can be restored."""
        self._closed = True
        self._journal.release()

    def accepted_again(self, invite: Invite) -> Accepted:
        """Return the same answer to a repeated invitation; raise for a different invitation to the same round."""
        if self._closed or invite != self.invite:
            self.close()
            raise UnexpectedRequest("there was another invitation to this round")
        return self.accepted

    def _answer(self, request: Message) -> Message:
        match request:
            case SendModel():
                return self._intake.take_piece(request)
            case SendSum():
                return self._intake.replay(request)
            case Train():
                return self.train()
            case Opening() if self.summing is None:
                return self.begin(request)
            case Dispatch() | Store():
                return self.receive(request)
        return self.sum(request)

    def train(self) -> Ready:
        """Compute the update from the model, store it in memory and in the journal, and return `Ready`.

        If training fails, `user_code` stops the run or stores a zero update, with the same reply.  For records the sum
        of their gradients is computed instead, in memory only: here or, with `sums_at_opening`, when the round opens.
        """
        if self.invite.terms.records:
            if self._update is None and not self._client.sums_at_opening:
                self._update = self._sum_records(self.invite.terms.records)
        elif self._update is None:
            model, client = self._intake.assemble(), self._client
            info, dim = self.invite.info, self.invite.dim
            client.owner.train(self.invite)
            whose, stored_as = f"client {client.me} in round {self.invite.number}", client.user_code.stored_as
            names = self.invite.terms.further or ()
            prepared = client.user_code.train(
                f"the training of {whose}",
                lambda: prepare(client.app, info, model.array, dim, names, whose, stored_as),
            )
            self._update = Prepared(zero_update(dim)) if prepared is None else prepared
            update, values = self._update.update, {name: x.tobytes() for name, x in self._update.values.items()}
            self._journal.note(Trained(update.dtype.str, update.view(np.uint8).data, values or UNSET))
        return Ready()

    def _sum_records(self, encoding: RecordEncoding) -> RecordSum:
        """Return the sum of gradients of a fresh sample of records; the sample itself is not stored or reported."""
        client, info, dim = self._client, self.invite.info, self.invite.dim
        source = as_record_client(client.app)
        check_event(info, encoding)
        model = self._intake.assemble().array
        client.owner.train(self.invite)
        whose = f"client {client.me} in round {self.invite.number}"
        return sum_for_round(client.user_code, whose, source, info, model, dim, encoding, client.entropy)

    def begin(self, request: Opening) -> Message:
        """Consent to the parameters, encode the update, and return the first reply of the summing protocol."""
        private = self.consent(request.parameters, request.proofs)
        if self.invite.terms.records and self._client.sums_at_opening:
            self._update = self._sum_records(self.invite.terms.records)
        vector = self.encode(private)
        self._journal.note(Encoded(private.parameters, vector.astype("<u4", copy=False).view(np.uint8).data))
        return self._count_upload(request, self._enter(private, vector).handle(request))

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> DistributedDP:
        """Return the encoding that the parameters define; raise if rules, invitation or owner do not allow them."""
        client, dim = self._client, self.invite.dim
        parameters.once("rules", lambda: rules.check_rules(parameters))
        checks.check_fits(self.invite, parameters, client.mechanism)
        checks.check_dense(parameters, client.protocol)
        client.owner.consent(parameters, proofs)
        self._parameters, kind = parameters, client.mechanism
        return parameters.once(("encoding", dim, kind), lambda: DistributedDP.from_parameters(parameters, dim, kind))

    def encode(self, private: DistributedDP) -> Vector:
        """Return the encoded update and forget it; if encoding fails, simulations stop, deployed clients encode 0s."""
        if isinstance(self._update, RecordSum):
            summed, self._update, self._parameters = self._update, None, private.parameters
            return private.encode_records(summed.total, {CLIPPING_BIT: summed.below}, self._client.entropy)
        (update, values), entropy = self.take_update(private.parameters), self._client.entropy
        vector = self._client.user_code.encode(
            "the encoding of the update", lambda: private.encode(update, entropy, values), self.invite.dim
        )
        return private.encode(zero_update(self.invite.dim), entropy) if vector is None else vector

    def take_update(self, parameters: Parameters) -> Prepared:
        """Return the stored update and forget it, and remember `parameters` as the parameters of the round."""
        if self._update is None or isinstance(self._update, RecordSum):
            raise UnexpectedRequest("the round begins before the update is made")
        update, self._update, self._parameters = self._update, None, parameters
        return update

    def _enter(self, private: DistributedDP, vector: Vector) -> SummingClient[Any]:
        """Create the client's state machines for delivery and for the summing protocol; return the summing client."""
        client, self._parameters = self._client, private.parameters
        self._delivering = DeliveryClient(private)
        self.summing = client.protocol.client(
            client.me,
            NoisyInput(vector, private.mechanism.law),
            signing=client.signing,
            registry=client.registry,
            suite=client.suite,
            journal=self._journal,
            entropy=client.entropy,
        )
        self.summing.selection_proof = self.accepted.proof
        return self.summing

    def sum(self, request: Message) -> Message:
        """Return the reply to a request of the summing protocol; count the participation before an upload."""
        if self.summing is None:
            raise UnexpectedRequest(f"{type(request).__name__} came before the round began")
        return self._count_upload(request, self.summing.handle(request))

    def _count_upload(self, request: Message, reply: Message) -> Message:
        """Return the reply unchanged; if the request asks for an upload, the owner counts the participation first."""
        if request.uploads:
            self.attend()
        return reply

    def attend(self) -> None:
        """Have the owner count the participation in this round; raise if its parameters are not agreed yet."""
        if self._parameters is None:
            raise ProtocolError("no round has begun")
        self._client.owner.attend(self._parameters, self._machine)

    def receive(self, request: Message) -> Message:
        """Return the reply to the delivered sum of a chunk; after the last chunk, give the sum to the application."""
        if self._delivering is None:
            raise UnexpectedRequest(f"{type(request).__name__} came before the round began")
        answered = self._delivering.state.answered
        reply = self._delivering.handle(request)
        if self._delivering.state.answered > answered:
            self._journal.note(request)
        aggregate = self._delivering.aggregate
        if aggregate is not None and not self._used:
            self.use(aggregate)
            self._make_next_model(aggregate)
        return reply

    def use(self, aggregate: Aggregate) -> None:
        """Give the decoded sum to the application, and end the round."""
        self._used = True
        if self._parameters is not None:
            self._client.owner.conclude(self._parameters, aggregate.survivors)
        app, info = self._client.app, self.invite.info
        self._client.user_code.notify("use_output of the application", lambda: app.use_output(info, aggregate))
        self._journal.close()
        if self.summing is not None:
            self.summing.close()
        if self._delivering is not None:
            self._delivering.forget()

    def _make_next_model(self, aggregate: Aggregate) -> None:
        """Cache the model after this round if the application can compute it, so that the server need not send it."""
        client, model = self._client, self._intake.model
        if model is not None:
            following = catch_up.next_model(client.user_code, client.app, self.invite.info, model, aggregate)
            if following is not None:
                client.models.keep(following)
