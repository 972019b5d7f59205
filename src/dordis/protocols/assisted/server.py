"""The assisted server: it takes contributions, and has helpers open boxes, agree on U3 (survivors), reveal mask sums.

At most f of the m helpers collude.  For each set of m - f helpers every client adds a mask; the members of the set
reveal the set's *value*: the sum of these masks, and the set's pieces of the noise seeds to be released.  The *rank* of
a set is its index in the parameters' `sets`.
The server holds one vector, the sum so far.  It reads a stored contribution again only if the client is not in U3, to
subtract the contribution from the sum.  n_min is the least number of clients in a sum.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import MalformedMessage, TooFewHelpers, Unconfirmed
from dordis.kernels.ring import Vector, add_packed, packed_size, unpack
from dordis.protocol import ClientId, Flow, Message, OpenCall, Resource, Step
from dordis.protocols import parameters as rules
from dordis.protocols.assisted import checks
from dordis.protocols.assisted.disputes import Complaints, SetValue, SetVoices
from dordis.protocols.assisted.messages import (
    DIGEST_BYTES,
    AgreeOnSurvivors,
    BoxesOpened,
    Entry,
    OpenBoxes,
    Reveal,
    Revealed,
    SendContribution,
    SignedContribution,
    SurvivorsAgreed,
    digest_value,
    due_pieces,
    join_pieces,
    survivors_statement,
)
from dordis.protocols.assisted.parameters import AssistedParameters
from dordis.protocols.escrow import SECRET_BYTES
from dordis.protocols.one_message import check_arrived
from dordis.protocols.parameters import pack_words, unpack_words
from dordis.protocols.summing import ChunkSum, SummingChunk, SummingServer, SummingSetup, collect, helper_keys, of_kind

PIECE = 1 << 20
"""Largest number of bytes of headers and boxes in one request to a helper."""


class AssistedSetup(SummingSetup):
    """The set-up of an assisted round: all steps, from the call for contributions to the sum; chunks have none.

    `standing` has the complaints of helpers about clients, of this round and of the run's earlier rounds.
    """

    def __init__(self, parameters: AssistedParameters, registry: Mapping[ClientId, bytes], suite: Suite) -> None:
        self.parameters, self.suite = parameters, suite
        self._clients, self._helpers = registry, helper_keys(registry)
        self.standing: Complaints = Complaints()
        self.total: Vector = np.zeros(parameters.dim, np.uint32)
        self.contributions: dict[ClientId, SignedContribution] = {}
        """Contributions without their vectors, which are added to `total`."""
        self.u3: tuple[ClientId, ...] = ()
        self.live: tuple[ClientId, ...] = ()
        """Helpers that answered every request to open boxes; after `agree`, only the helpers that also signed U3."""
        self.named: frozenset[ClientId] = frozenset()
        """Clients that were proved wrong by complaints of this round."""
        self.sets: list[SetVoices] = []
        self.released: dict[int, dict[ClientId, dict[int, bytes]]] = {}
        """The noise seeds that the server obtained, by chunk, client and noise component."""
        self._signatures: dict[int, bytes] = {}
        self._call: OpenCall | None = None

    @property
    def workflow(self) -> Sequence[Step]:
        return (
            Step(self.take_contributions, Resource.NETWORK),
            Step(self.open_boxes, Resource.SERVER),
            Step(self.agree, Resource.SERVER),
            Step(self.reveal, Resource.SERVER),
            Step(self.unmask, Resource.SERVER),
        )

    def take_contributions(self) -> Flow:
        """Add up the contributions as they arrive; raise TooFewClients if fewer than n_min clients contributed."""
        self._call = OpenCall(SendContribution(self.parameters), self.parameters.n_max, self.check)
        for u, reply in (yield self._call):
            whole = of_kind(SignedContribution, reply)
            add_packed(self.total, whole.vector, self.parameters.bits)
            self.contributions[u] = replace(whole, vector=b"")
        self.contributions = dict(sorted(self.contributions.items()))
        check_arrived(self.parameters, SendContribution.__name__, self.contributions)

    def check(self, u: ClientId, reply: Message) -> None:
        """Raise if a contribution is malformed or unsigned, or its client not selected or in `Complaints.left_out`."""
        reply, parameters = of_kind(SignedContribution, reply), self.parameters
        check_not_left_out(self.standing, u)
        header = checks.read_header(parameters, u, reply.header)
        checks.check_header_signed(self._clients, u, reply.header, reply.signature, self.suite)
        self.verify_client(parameters.index, u, header.proof)
        checks.check_vector_digest(header, reply.vector)
        for h, box in self._split_boxes(reply).items():
            checks.check_box_digest(parameters, header, h, box)

    def _split_boxes(self, reply: SignedContribution) -> dict[ClientId, bytes]:
        """Return the boxes of a contribution by helper; all are equally long, because each has as many seeds."""
        present = self.parameters.present
        size, rest = divmod(len(reply.boxes), len(present))
        if rest:
            raise MalformedMessage("a contribution has a box for each helper that has a key")
        return {h: reply.boxes[size * place : size * (place + 1)] for place, h in enumerate(present)}

    @property
    def _colluders(self) -> int:
        """Return L, the largest number of clients that may collude in a run: the limit for complaints of one helper."""
        return self.parameters.colluders if self.run_colluders is None else self.run_colluders

    def open_boxes(self) -> Flow:
        """Have every helper open its boxes, and fix U3; subtract the contributions of clients that are not in U3."""
        live = {h for h in self.parameters.present if h not in self.standing.helpers}
        edges: set[tuple[int, int]] = set()
        for clients in self._pieces():
            replies = yield {h: OpenBoxes(self.parameters, self._entries(h, clients)) for h in sorted(live)}
            named = collect(live, BoxesOpened, replies, partial(_read_names, asked=frozenset(clients)))
            live = {h for h, names in named.items() if names is not None}
            edges.update((int(h), int(u)) for h, names in named.items() for u in names or ())
        self.live = tuple(sorted(live))
        check_quorum_left(self.parameters, "OpenBoxes", self.live)
        before = self.standing.clients
        self.standing = self.standing.with_edges(edges, self.parameters.faulty, self._colluders)
        self.named = frozenset(map(ClientId, self.standing.clients - before))
        u3 = tuple(u for u in self.contributions if u not in self.standing.left_out)
        check_arrived(self.parameters, OpenBoxes.__name__, u3)
        u3 = self.fix_survivors(u3)
        for u in self.contributions.keys() - set(u3):
            self._subtract(u)
        self.u3 = u3

    def _pieces(self) -> Iterator[list[ClientId]]:
        """Yield the contributing clients in groups; the boxes and headers of a group fit one request to a helper."""
        clients: list[ClientId] = []
        size = 0
        for u, reply in self.contributions.items():
            bytes_here = len(reply.header) + len(reply.signature) + len(reply.boxes) + 32
            if clients and size + bytes_here > PIECE:
                yield clients
                clients, size = [], 0
            clients.append(u)
            size += bytes_here
        yield clients

    def _entries(self, h: ClientId, clients: Sequence[ClientId]) -> dict[int, Entry]:
        came = self.contributions
        return {int(u): Entry(came[u].header, came[u].signature, self._split_boxes(came[u])[h]) for u in clients}

    def _subtract(self, u: ClientId) -> None:
        if self._call is None:
            return
        vector = of_kind(SignedContribution, self._call.read_again(u)).vector
        self.total -= unpack(vector, self.parameters.bits, self.parameters.dim)

    def agree(self) -> Flow:
        """In the malicious mode: collect the helpers' signatures on U3; only helpers that sign are asked for sums."""
        if not self.parameters.is_malicious:
            return
        request = AgreeOnSurvivors(self.parameters.round, pack_words(self.u3))
        replies = yield dict.fromkeys(self.live, request)
        headers = (hashlib.sha256(self.contributions[u].header).digest() for u in self.u3)
        statement = survivors_statement(self.parameters, headers)
        signed = collect(self.live, SurvivorsAgreed, replies, partial(self._signature, statement=statement))
        self.live = tuple(signed)
        check_quorum_left(self.parameters, "AgreeOnSurvivors", self.live)
        self._signatures = {int(h): signature for h, signature in signed.items()}

    def _signature(self, h: ClientId, reply: SurvivorsAgreed, statement: bytes) -> bytes:
        self.suite.signature.verify(self._helpers[h], statement, reply.signature)
        return reply.signature

    def reveal(self) -> Flow:
        """Ask helpers for the value of each set, until enough members of the set gave the same value.

        Raise Unconfirmed if too few members of some set gave the same value.
        """
        parameters, survivors = self.parameters, pack_words(self.u3)
        live, needed = set(self.live), parameters.voices
        self.sets = [
            SetVoices(rank, tuple(h for h in members if h in live), needed)
            for rank, members in enumerate(parameters.sets)
        ]
        while asked := self._next_requests():
            requests = {
                h: Reveal(parameters.round, survivors, self._signatures, ranks) for h, ranks in sorted(asked.items())
            }
            malformed: set[ClientId] = set()
            replies = yield requests
            heard = collect(requests, Revealed, replies, partial(self._values, asked=asked), malformed)
            for h, ranks in asked.items():
                for rank in ranks:
                    self._hear(rank, h, heard.get(h), h in malformed)
        self._check_confirmed()

    def _next_requests(self) -> dict[ClientId, dict[int, bool]]:
        asked: dict[ClientId, dict[int, bool]] = {}
        for voices in self.sets:
            load = {h: len(ranks) for h, ranks in asked.items()}
            for h, is_whole in voices.next_requests(load).items():
                asked.setdefault(h, {})[voices.rank] = is_whole
        return asked

    def _values(
        self, h: ClientId, reply: Revealed, asked: Mapping[ClientId, Mapping[int, bool]]
    ) -> dict[int, tuple[bytes, SetValue | None]]:
        """Return the reply of helper h by rank of the helper set: the digest of the set's value, and the value itself.

        The value is None where the server asked for the digest only.  Raise MalformedMessage unless the reply has
        exactly what the server asked for.
        """
        wholes = [rank for rank, is_whole in asked[h].items() if is_whole]
        size = packed_size(self.parameters.dim, self.parameters.bits)
        due = SECRET_BYTES * len(due_pieces(self.parameters, self.u3))
        if (
            list(reply.pieces) != wholes
            or reply.digests.keys() | reply.pieces.keys() != asked[h].keys()
            or len(reply.masks) != size * len(wholes)
            or any(len(pieces) != due for pieces in reply.pieces.values())
            or any(len(digest) != DIGEST_BYTES for digest in reply.digests.values())
        ):
            raise MalformedMessage(f"helper {h} did not reveal what it was asked for")
        masks = memoryview(reply.masks)
        found: dict[int, tuple[bytes, SetValue | None]] = {r: (digest, None) for r, digest in reply.digests.items()}
        for place, rank in enumerate(wholes):
            # Copied: an exchange may reuse the memory of a reply for the next one.
            value = SetValue(bytes(masks[size * place : size * (place + 1)]), reply.pieces[rank])
            unpack(value.masks, self.parameters.bits, self.parameters.dim)  # raises if this is no packed vector
            found[rank] = digest_value(self.parameters, rank, value.masks, value.pieces), value
        return found

    def _hear(
        self, rank: int, h: ClientId, answer: Mapping[int, tuple[bytes, SetValue | None]] | None, is_malformed: bool
    ) -> None:
        voices = self.sets[rank]
        if answer is not None:
            voices.hear(h, *answer[rank])
        elif is_malformed:
            voices.caught.add(h)
        else:
            voices.silent.add(h)

    def _check_confirmed(self) -> None:
        """Evict helpers that lied; raise Unconfirmed if too few members of a set gave the same value."""
        liars = {int(h) for voices in self.sets for h in voices.liars}
        self.standing = self.standing.with_liars(liars, self.parameters.faulty, self._colluders)
        for voices in self.sets:
            check_confirmed(voices)

    def unmask(self) -> Flow | None:
        """Subtract every set's sum of masks from the sum; store the seeds of due noise, each joined from its pieces.

        Return None, because this step sends no request.
        """
        parameters, due = self.parameters, due_pieces(self.parameters, self.u3)
        values = [voices.value for voices in self.sets]
        pieces = [value.pieces for value in values if value is not None]
        for value in values:
            if value is not None:
                self.total -= unpack(value.masks, parameters.bits, parameters.dim)
        for place, (chunk, u, component) in enumerate(due):
            seed = join_pieces(part[SECRET_BYTES * place : SECRET_BYTES * (place + 1)] for part in pieces)
            self.released.setdefault(chunk, {}).setdefault(u, {})[component] = seed
        return None


def check_not_left_out(standing: Complaints, client: ClientId) -> None:
    """Raise MalformedMessage if the client was evicted or has an unresolved complaint: it would not be in U3."""
    if client in standing.left_out:
        raise MalformedMessage(f"client {client} is left out of this run: a helper found its box unusable")


def check_quorum_left(parameters: AssistedParameters, stage: str, live: Sequence[ClientId]) -> None:
    """Raise TooFewHelpers unless enough helpers, `live`, have answered: in the malicious mode a quorum, else f + 1.

    Any f + 1 helpers include a member of each set, because a set lacks only f of the m helpers.
    """
    needed = parameters.quorum if parameters.is_malicious else parameters.faulty + 1
    if len(live) < needed:
        raise TooFewHelpers(stage, len(live), needed)


def check_confirmed(voices: SetVoices) -> None:
    """Raise Unconfirmed unless `voices.needed` members of a set gave the same value, at least one of them whole."""
    if voices.value is None:
        raise Unconfirmed(voices.rank, len(voices.said), voices.needed)


def _read_names(h: ClientId, reply: BoxesOpened, asked: frozenset[ClientId]) -> frozenset[ClientId] | None:
    """Return the clients about which helper h complains, or None if h lacks its key; raise if one is not in `asked`."""
    named = frozenset(map(ClientId, unpack_words(reply.named)))
    if not named <= asked:
        raise MalformedMessage(f"helper {h} names clients that it was not asked about")
    return None if reply.unable else named


class AssistedChunk(SummingChunk):
    """One chunk of the sum that the set-up computes."""

    def __init__(self, setup: AssistedSetup, chunk: int) -> None:
        self.setup, self.chunk = setup, chunk

    @property
    def u3(self) -> tuple[ClientId, ...]:  # type: ignore[override]
        """Return the clients whose input is in the sum: the same in all chunks."""
        return self.setup.u3

    @property
    def workflow(self) -> Sequence[Step]:
        """Return no steps: the set-up has computed the sum of all chunks."""
        return ()

    def output(self) -> ChunkSum:
        """Return the chunk's part of the sum, and the noise seeds released for the chunk."""
        total = np.array(self.setup.total[self.setup.parameters.chunks[self.chunk]])
        return ChunkSum(total, self.u3, self.setup.released.get(self.chunk, {}), self.setup.named)


class AssistedServer(SummingServer):
    """The assisted server for one round; the `registry` has the public keys of clients and helpers."""

    def __init__(
        self,
        parameters: AssistedParameters,
        registry: Mapping[ClientId, bytes],
        proofs: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
    ) -> None:
        rules.check_rules(parameters)
        self.setup: AssistedSetup = AssistedSetup(parameters, registry, suite)
        self.chunks: list[AssistedChunk] = [AssistedChunk(self.setup, k) for k in range(len(parameters.chunks))]
