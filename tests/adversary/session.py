"""A round led by a server that may deviate at any step.

Every step does what the protocol says unless it is told otherwise.  Honest clients are real ones, and what is sent to
them and by them goes through the codec.  `secrets` and `inputs` are the examiner's knowledge, never the adversary's:
they serve to tell whether it succeeded.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dordis import wire
from dordis.crypto import signature
from dordis.owner.policy import Owner
from dordis.pipeline import executor as drive
from dordis.privacy.xnoise_components import removal_context
from dordis.protocol import ClientId, Journal, MemoryJournal, Message, Party, Requests, reply_to
from dordis.protocols.noise_addition_and_removal import ChunkOutput, PrivateServer
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import SecAggClient, SecAggServer, masking, messages
from dordis.protocols.secagg.client import SecAggState
from dordis.protocols.secagg.masking import Secrets
from dordis.rounds.invitation import SendModel, Train
from dordis.rounds.model import ModelBytes
from dordis.selection.selection import NO_PROOFS, Proofs
from dordis.simulation.exchange import LocalExchange, Lost, nothing_lost
from tests.adversary.participants import (
    MODELS,
    NO_MODEL,
    Clients,
    Holder,
    forged,
    honest_client,
    invitation,
    keys_of,
    random_update,
    registry,
    restored_machine,
    ring_input,
    signing_keys,
)

Unmaskings = dict[ClientId, messages.Unmasking]
KEYS, SHARES, SET_UP, UPLOADS = 1, 2, 3, 4
"""How far a round has gone: the keys are shown, the shares sent, the shares delivered, the first chunk uploaded."""


@dataclass
class Trail:
    """How far an attack has come: the name of the last request."""

    stage: str = ""


class Foiled(Exception):
    """Nobody raised, and still the adversary has nothing: `by` says what stood in its way."""

    def __init__(self, by: str, why: str) -> None:
        super().__init__(why)
        self.by = by


def foiled_unless(gained: bool, by: str, why: str) -> None:
    """Say what stood in the adversary's way, unless it has what it wanted."""
    if not gained:
        raise Foiled(by, why)


class DishonestClient:
    """A client that answers honestly, except that `alter` changes its replies to one kind of request."""

    def __init__(self, honest: Party, kind: type[Message], alter: Callable[[Any], Message]) -> None:
        self._honest, self._kind, self._alter = honest, kind, alter

    def handle(self, request: Message) -> Message:
        """Answer, or lie."""
        reply = self._honest.handle(request)
        return self._alter(reply) if isinstance(request, self._kind) else reply


class Session:
    """One round, step by step; everyone who is registered has a client, in the round or not."""

    def __init__(self, parameters: Parameters, trail: Trail) -> None:
        self.parameters, self.trail = parameters, trail
        everyone = sorted({*registry(), *parameters.clients})
        self.apps = {u: Holder(random_update(parameters)) for u in everyone}
        self.inputs = {u: ring_input(parameters, app.update) for u, app in self.apps.items()}
        self.journals: dict[ClientId, Journal] = {u: MemoryJournal() for u in everyone}
        self.honest = {u: honest_client(u, self.apps[u], self._journal_of(u)) for u in everyone}
        self.parties: dict[ClientId, Party] = dict(self.honest)
        self.secrets: dict[ClientId, dict[int, Secrets]] = {}
        self.keys: dict[ClientId, messages.Advertisement] = {}
        self.shares: dict[ClientId, messages.EncryptedShares] = {}
        self.u2: tuple[ClientId, ...] = ()
        self.uploads: dict[int, dict[ClientId, messages.MaskedInput]] = {}
        self.victim, self.last = parameters.clients[0], parameters.clients[-1]

    @property
    def others(self) -> tuple[ClientId, ...]:
        """Return U2 without the victim."""
        return tuple(u for u in self.u2 if u != self.victim)

    def peers(self, u: ClientId) -> list[ClientId]:
        """Return those with whom a client shares masks and secrets."""
        return sorted(self.parameters.neighbourhoods[u] - {u})

    def state(self, u: ClientId) -> SecAggState:
        """Return what an honest client remembers: for the examiner, and for the client itself if it colludes."""
        taking_part = self.honest[u].round
        if taking_part is None or not isinstance(taking_part.summing, SecAggClient):
            raise Foiled("the client", "it has not entered the round")
        return taking_part.summing.state

    # Who takes part, and how

    def another(self, after: int = 0, **changes: Any) -> "Session":
        """Return another round of the same clients, with other parameters, up to a stage."""
        session = Session(forged(self.parameters, **changes), self.trail)
        session.reach(after)
        return session

    def give_owner(self, owner: Owner) -> None:
        """Give a client an owner of its own instead of a trusting one."""
        u = owner.me
        self.parties[u] = self.honest[u] = honest_client(u, self.apps[u], self._journal_of(u), owner)

    def _journal_of(self, u: ClientId) -> Callable[[bytes], Journal]:
        return lambda round: self.journals[u]

    def restored(self, u: ClientId, journal: Journal | None) -> Party:
        """Restore a client from a copy of its state as it is now."""
        return restored_machine(u, self.inputs[u], journal, deepcopy(self.state(u)))

    def corrupt(self, u: ClientId, kind: type[Message], alter: Callable[[Any], Message]) -> None:
        """Make a client alter its replies to one kind of request."""
        self.parties[u] = DishonestClient(self.honest[u], kind, alter)

    def sign(self, u: ClientId, statement: bytes) -> bytes:
        """Sign as a colluder would."""
        return signature.sign(keys_of(u).signing, statement)

    # Messages

    def deliver(self, party: Party, request: Message) -> Any:
        """Send one request to one party through the codec, and return its reply."""
        self.trail.stage = type(request).__name__
        received = wire.carry(request, type(request))
        return wire.carry(party.handle(received), reply_to(request))

    def ask(self, u: ClientId, request: Message) -> Any:
        """Send a request to one client and return its reply."""
        return self.deliver(self.parties[u], request)

    def read(self, data: bytes, kind: type[Message], limit: int = wire.LIMIT) -> str:
        """Let the victim read and answer bytes that are not what they should be; return what that gains."""
        self.parties[self.victim].handle(wire.decode(data, kind, limit))
        return f"the victim read the bytes of {kind.__name__} and answered"

    def play(self, lost: Lost = nothing_lost) -> ChunkOutput:
        """Run the whole round, of one chunk, with an honest server."""
        server = PrivateServer(SecAggServer(self.parameters, signing_keys()), self.parameters)
        (output,) = self.run(server, lost)
        self.secrets = {u: self.state(u).secrets for u in self.parameters.clients}
        return output

    def run(self, server: PrivateServer, lost: Lost = nothing_lost) -> tuple[ChunkOutput, ...]:
        """Invite all clients and run the whole round with a server's machine."""
        for u in self.parameters.clients:
            self.invite(u, self.parameters)
        local = LocalExchange(self.parties, lost)

        def exchange(requests: Requests) -> Iterator[tuple[ClientId, Message]]:
            self.trail.stage = type(next(iter(requests.values()))).__name__
            return local(requests)

        return drive.run(server, exchange)

    # Stages

    def reach(self, stage: int) -> None:
        """Begin the round and go on to the end of a stage, as it should be."""
        steps: tuple[Callable[[], object], ...] = (self.advertise, self.share, self.open, self.upload)
        for step in steps[:stage]:
            step()

    def invite(
        self, u: ClientId, parameters: Parameters, model: ModelBytes = NO_MODEL, sent: bytes | None = None
    ) -> None:
        """Invite a client to a round with these parameters and have it train; `sent` is another model."""
        if not self.ask(u, invitation(parameters, model)).has_model:
            self.ask(u, SendModel(0, model.data if sent is None else sent))
        self.ask(u, Train())

    def advertise(
        self, who: Clients | None = None, shown: Mapping[ClientId, Parameters] | None = None, proofs: Proofs = NO_PROOFS
    ) -> None:
        """Stage 0; `shown` are other parameters for some, `proofs` show that U was selected."""
        proved = {int(u): proofs[u] for u in sorted(proofs)}
        for u in self.parameters.clients if who is None else who:
            parameters = (shown or {}).get(u, self.parameters)
            self.invite(u, parameters, MODELS.get(parameters.model, NO_MODEL))
            self.keys[u] = self.ask(u, messages.AdvertiseKeys(parameters, proved))
            self.secrets[u] = self.state(u).secrets

    def broadcast(self, u1: Clients | None = None) -> messages.ShareKeys:
        """Return the request of stage 1, for this U1."""
        return messages.ShareKeys({int(u): self.keys[u] for u in sorted(self.keys if u1 is None else u1)})

    def share(self, who: Clients | None = None) -> None:
        """Stage 1."""
        for u in self.keys if who is None else who:
            self.shares[u] = self.ask(u, self.broadcast())
        self.u2 = tuple(sorted(self.shares))

    def delivery(self, v: ClientId, hidden: Clients = ()) -> messages.DeliverShares:
        """Return what a client is due at the end of stage 1, if U2 is without those that are hidden."""
        members = [u for u in self.u2 if u not in hidden]
        senders = sorted(self.parameters.neighbourhoods[v] & {*members} - {v})
        ciphertexts = {int(u): self.shares[u].ciphertexts[v] for u in senders}
        return messages.DeliverShares(self.parameters.pack(members), ciphertexts)

    def open(self, who: Clients | None = None) -> None:
        """End of stage 1."""
        for v in self.u2 if who is None else who:
            self.ask(v, self.delivery(v))

    def upload(self, who: Clients | None = None, chunk: int = 0) -> None:
        """Stage 2."""
        for u in self.u2 if who is None else who:
            self.uploads.setdefault(chunk, {})[u] = self.ask(u, messages.CollectInput(chunk))

    def agreement(self, u3: Clients, chunk: int = 0, forged: Clients = ()) -> messages.Agree:
        """Return the request of stage 3, with invented tokens for some."""
        tokens = (bytes(32) if u in forged else self.uploads[chunk][u].token for u in sorted(u3))
        return messages.Agree(chunk, self.parameters.pack(u3), b"".join(tokens))

    def agree(self, u3: Clients, who: Clients | None = None, chunk: int = 0, forged: Clients = ()) -> dict[int, bytes]:
        """Stage 3: return the signatures; in the semi-honest mode there are none."""
        if not self.parameters.is_malicious:
            return {}
        request = self.agreement(u3, chunk, forged)
        return {int(u): self.ask(u, request).signature for u in sorted(u3 if who is None else who)}

    def unmask(
        self, u3: Clients, signatures: Mapping[int, bytes], who: Clients | None = None, chunk: int = 0
    ) -> Unmaskings:
        """Stage 4: return the replies."""
        request = messages.Unmask(chunk, self.parameters.pack(u3), dict(sorted(signatures.items())))
        return {u: self.ask(u, request) for u in sorted(u3 if who is None else who)}

    def finish(self, u3: Clients, chunk: int = 0, without: Clients = ()) -> Unmaskings:
        """Do stages 3 and 4 with everyone in U3 but some."""
        asked = [u for u in u3 if u not in without]
        return self.unmask(u3, self.agree(u3, asked, chunk), asked, chunk)

    def seed_shares(self, owing: ClientId, who: Clients) -> dict[ClientId, bytes]:
        """Stage 5: return the shares of one client's seed."""
        request = messages.RemoveNoise(0, self.parameters.pack([owing]))
        given = {u: self.ask(u, request).shares for u in sorted(who)}
        return {u: share for u, share in given.items() if share}

    # What is public

    def masking_key(self, u: ClientId, chunk: int = 0) -> bytes:
        """Return a public masking key."""
        return masking.split(self.keys[u].masking, masking.KEY_BYTES, len(self.parameters.chunks))[chunk]

    def removal_order(self) -> list[ClientId]:
        """Return U in the public order in which the removable noise of the first chunk is taken."""
        named = b"dordis/v1/removal" + removal_context(self.parameters.round, 0, self.parameters.digest)
        return sorted(self.parameters.clients, key=lambda u: hashlib.sha256(named + u.to_bytes(8, "big")).digest())

    def due(self, u3: Clients) -> set[ClientId]:
        """Return the members of U3 whose removable noise in the first chunk is due."""
        return {ClientId(u) for u, ks in self.parameters.due(0, u3).items() if ks}
