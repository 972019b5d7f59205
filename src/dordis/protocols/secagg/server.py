"""The SecAgg server: the set-up once a round (`setup`), then stages 2 to 5 for every chunk.

In stages 2 to 5 the server adds up the inputs, removes the masks, and obtains the *due* secrets: the deposited secrets
that the rule of the escrow releases, given the survivors.  The server adds each upload to the sum as it arrives.  So it
holds one vector for each chunk in progress, and no client's vector.  `SecAggPrediction` computes the outcome of a round
from its dropouts, without masks or messages: the survivors (U3), unreleased secrets and failures of the real round.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import ProtocolError, TooFewClients, Unrecoverable
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId, Flow, Message, Replies, Resource, Step, requests_in
from dordis.protocols import parameters as rules
from dordis.protocols.cohort import CohortParameters, ensure_enough
from dordis.protocols.escrow import Releases
from dordis.protocols.secagg import client_checks, masking, messages, unmasking
from dordis.protocols.secagg.client_checks import Registry
from dordis.protocols.secagg.masking import FIRST_DEPOSITED, KEY, KEY_BYTES, SELF_MASK, split
from dordis.protocols.secagg.messages import (
    Agree,
    Agreement,
    CollectInput,
    MaskedInput,
    NoiseShares,
    PrepareInput,
    RemoveNoise,
    ShareKeys,
    Unmask,
    Unmasking,
    survivors_statement,
)
from dordis.protocols.secagg.setup import SetupServer
from dordis.protocols.summing import ChunkSum, Leaving, SummingChunk, SummingServer, catch, collect
from dordis.protocols.vector_backend import Accumulator

Reply = TypeVar("Reply", MaskedInput, Agreement, Unmasking, NoiseShares)
Parsed = TypeVar("Parsed")
Stage = type[Message]

STAGES = [request for request in requests_in(vars(messages)) if not request.ahead]
_UPLOAD, _UNMASK = STAGES.index(CollectInput), STAGES.index(Unmask)


class ChunkServer(SummingChunk):
    """The server's part in stages 2 to 5 of one chunk; stage 3 happens in the malicious mode only."""

    def __init__(self, setup: SetupServer, chunk: int) -> None:
        self.parameters = setup.parameters
        self.chunk = chunk
        self._setup, self._suite = setup, setup.suite
        self._total: Vector = np.zeros(0, np.uint32)
        self._tokens: dict[ClientId, bytes] = {}
        self._signatures: dict[ClientId, bytes] = {}
        self.u3 = ()
        self.u4: tuple[ClientId, ...] = ()
        self.u5: tuple[ClientId, ...] = ()
        self._due: Releases = {}
        self._disclosed: dict[ClientId, Mapping[int, bytes]] = {}
        self._released: dict[ClientId, Mapping[int, bytes]] = {}

    @property
    def workflow(self) -> Sequence[Step]:
        return (
            Step(self.prepare_inputs, Resource.CLIENT),
            Step(self.collect_inputs, Resource.NETWORK),
            Step(self.agree, Resource.SERVER),
            Step(self.unmask, Resource.SERVER),
            Step(self.release_secrets, Resource.SERVER),
        )

    def output(self) -> ChunkSum:
        return ChunkSum(self._total, self.u3, self._released, self._known_liars, self._signatures)

    @property
    def _known_liars(self) -> frozenset[ClientId]:
        return frozenset(self._setup.liars)

    def _collect(
        self,
        asked: Collection[ClientId],
        kind: type[Reply],
        replies: Replies,
        check: Callable[[ClientId, Reply], Parsed],
    ) -> dict[ClientId, Parsed]:
        """Return, by client, the result of `check` on its reply.

        Replies that `check` refuses are left out, and their senders are added to the liars of the set-up.
        """

        def checked(u: ClientId, reply: Reply) -> Parsed:
            check_chunk(reply.chunk, self.chunk)
            return check(u, reply)

        return collect(asked, kind, replies, checked, self._setup.liars)

    def prepare_inputs(self) -> Flow:
        """Stage 2, ahead of the upload: ask clients to mask inputs; a client that does not reply may still upload."""
        yield dict.fromkeys(self._setup.ready, PrepareInput(self.chunk))

    def collect_inputs(self) -> Flow:
        """Stage 2: add up the masked inputs as they arrive; their senders are U3, the survivors."""
        replies = yield dict.fromkeys(self._setup.ready, CollectInput(self.chunk))
        span, bits = self.parameters.chunks[self.chunk], self.parameters.bits
        inputs = self._setup.vectors.accumulator(self.chunk, span.stop - span.start, bits)
        self._tokens = self._collect(self._setup.ready, MaskedInput, replies, partial(self._add, inputs))
        self._total, summed = inputs.close()
        self.u3 = tuple(sorted(self._tokens.keys() & set(summed)))
        ensure_enough(self.parameters, "CollectInput", self.u3, self._known_liars)
        self._due = self.parameters.escrow(self.chunk).releases(self.u3)

    def _add(self, inputs: Accumulator, u: ClientId, reply: MaskedInput) -> bytes:
        """Add client u's upload to the sum; return its token.  Raise, without adding, if token or vector is wrong."""
        expected = split(self._setup.keys[u].tokens, KEY_BYTES, len(self.parameters.chunks))[self.chunk]
        if masking.token_hash(self.parameters, self.chunk, u, reply.token) != expected:
            raise ProtocolError("the upload token is not the advertised one")
        inputs.add(u, reply.vector)
        return reply.token

    def agree(self) -> Flow:
        """Stage 3, in the malicious mode: collect a quorum of signatures on U3, the survivors; the signers are U4.

        In the semi-honest mode U4 is U3.
        """
        self.u4 = self.u3
        if not self.parameters.is_malicious:
            return
        bitmap = self.parameters.pack(self.u3)
        tokens = b"".join(self._tokens[u] for u in self.u3)
        replies = yield dict.fromkeys(self.u3, Agree(self.chunk, bitmap, tokens))
        statement = survivors_statement(self.parameters, self.chunk, bitmap)
        signed = partial(self._checked_signature, statement=statement)
        signatures = self._collect(self.u3, Agreement, replies, signed)
        self.u4 = tuple(sorted(signatures))
        if len(self.u4) < self.parameters.quorum:
            raise TooFewClients("Agree", len(self.u4), self.parameters.quorum, self._known_liars)
        self._signatures = {u: signatures[u] for u in self.u4[: self.parameters.quorum]}

    def _checked_signature(self, u: ClientId, reply: Agreement, statement: bytes) -> bytes:
        client_checks.verify_statement(self._suite, self._setup.registry, u, statement, reply.signature)
        return reply.signature

    def unmask(self) -> Flow:
        """Stage 4: collect shares from U4, rebuild the secrets of all masks, and remove the masks from the sum.

        The clients that answer are U5.
        """
        signatures = {int(u): signed for u, signed in self._signatures.items()}
        replies = yield dict.fromkeys(self.u4, Unmask(self.chunk, self.parameters.pack(self.u3), signatures))
        answers = self._collect(self.u4, Unmasking, replies, self._checked_unmasking)
        if len(answers) < self.parameters.quorum:
            raise TooFewClients("Unmask", len(answers), self.parameters.quorum, self._known_liars)
        self.u5 = tuple(sorted(answers))
        self._disclosed = {u: disclosed for u, (_, disclosed) in answers.items()}
        secrets = self._rebuild_secrets({u: shares for u, (shares, _) in answers.items()})
        survivors = frozenset(self.u3)
        unmasking.remove_masks(
            self._suite,
            self._total,
            self.parameters,
            self.chunk,
            {u: secret for u, secret in secrets.items() if u not in survivors},
            {u: secret for u, secret in secrets.items() if u in survivors},
            {u: self._setup.masking_key(u, self.chunk) for u in self.u3},
            self._setup.vectors,
        )

    def _rebuild_secrets(self, held: Mapping[ClientId, unmasking.DisclosedShares]) -> dict[ClientId, bytes]:
        """Return the rebuilt self-mask seeds of survivors and masking keys of dropouts; raise if one is not rebuilt."""
        dealers = sorted(self._setup.shares)
        recovered = unmasking.recover(self._suite, self.parameters, held, dealers, self._is_right)
        self._setup.liars |= recovered.false
        if recovered.false:
            dealer = min(recovered.false)
            raise Unrecoverable(f"client {dealer} shared other secrets than it committed to", self._known_liars)
        if recovered.short:
            fitting = recovered.short[min(recovered.short)]
            raise TooFewClients("Unmask", fitting, self.parameters.threshold, self._known_liars)
        return {u: secrets[0] for u, secrets in recovered.secrets.items()}

    def _checked_unmasking(
        self, v: ClientId, reply: Unmasking
    ) -> tuple[unmasking.DisclosedShares, Mapping[int, bytes]]:
        """Return what client v disclosed: shares of masking keys and self-mask seeds, and v's own due secrets.

        Due secrets are the deposited secrets of v that the rule of the escrow releases for U3.  Raise if the reply is
        malformed or has a secret that is not due.
        """
        survivors = frozenset(self.u3)
        lost, alive = ([u for u in self._setup.holdings(v) if (u in survivors) is kept] for kept in (False, True))
        check_shares_length(reply.key_shares, len(lost), self._suite)
        check_shares_length(reply.mask_shares, len(alive), self._suite)
        places = dict.fromkeys(lost, (KEY,)) | dict.fromkeys(alive, (SELF_MASK,))
        held = self._parse_shares(v, places, reply.key_shares + reply.mask_shares)
        if any(k not in self._due[v] or len(seed) != KEY_BYTES for k, seed in reply.seeds.items()):
            raise ProtocolError("the seeds disclosed are not the due ones")
        return held, reply.seeds

    def _parse_shares(
        self, v: ClientId, places: Mapping[ClientId, Sequence[int]], shares: bytes
    ) -> unmasking.DisclosedShares:
        """Return the parsed shares that client v disclosed; if any has a wrong hash, also add v to the liars.

        `places` has, by dealer, the indices of the secrets whose shares are in `shares`.
        """
        sharing = self._suite.sharing
        wanted = [(u, place) for u, owed in places.items() for place in owed]
        parsed = sharing.from_bytes(shares, len(wanted)).reshape(len(places), -1, sharing.LIMBS)
        cut = split(shares, sharing.SHARE_BYTES, len(wanted))
        fits = self._setup.fits(self.chunk, v, wanted, cut)
        if not fits.all():
            catch(v, self._setup.liars)
        return unmasking.DisclosedShares(tuple(places), parsed, fits.reshape(parsed.shape[:2]))

    def _is_right(self, u: ClientId, place: int, secret: bytes) -> bool:
        """Tell whether client u committed to `secret`: a survivor's rebuilt self-mask seed, a dropout's masking key.

        `place`, the index of the secret, is 0: one secret of each client is rebuilt.
        """
        if u in self.u3:
            return self._setup.commitments(u, self.chunk)[0] == masking.commitment(
                self.parameters, self.chunk, u, "self-mask", 0, secret
            )
        return self._setup.masking_key(u, self.chunk) == self._suite.agreement.public_key(secret)

    def release_secrets(self) -> Flow:
        """Stage 5: obtain the due secrets, the deposited secrets that the escrow's rule releases, given the survivors.

        In stage 4 clients disclosed their own due secrets.  This step checks these secrets against the clients'
        commitments.  If any due secret of a client is missing or wrong, this step requests the shares of all due
        secrets of that client from other clients, and rebuilds the secrets.
        """
        owing = {}
        for u in self.u3:
            disclosed, ks = self._disclosed.get(u, {}), self._due[u]
            wrong = [k for k, secret in disclosed.items() if not self._is_committed(u, k, secret)]
            if not wrong and disclosed.keys() == set(ks):
                self._released[u] = disclosed
            else:
                owing[u] = ks
            if wrong or (u in self._disclosed and disclosed.keys() != set(ks)):
                catch(u, self._setup.liars)
        if not owing:
            return
        holders = [v for v in self.u5 if not owing.keys().isdisjoint(self._setup.holdings(v))]
        replies = yield dict.fromkeys(holders, RemoveNoise(self.chunk, self.parameters.pack(owing)))
        self._recover_secrets(owing, replies)

    def _recover_secrets(self, owing: Mapping[ClientId, tuple[int, ...]], replies: Replies) -> None:
        """Rebuild the secrets in `owing` from the shares in `replies`; secrets that cannot be rebuilt stay missing.

        `owing` has, by client, the indices of its due secrets.
        """
        held = self._collect(self.u5, NoiseShares, replies, partial(self._checked_shares, owing=owing))

        def is_right(u: ClientId, place: int, secret: bytes) -> bool:
            return self._is_committed(u, owing[u][place], secret)

        recovered = unmasking.recover(self._suite, self.parameters, held, list(owing), is_right)
        self._setup.liars |= recovered.false
        for u, ks in owing.items():
            self._released[u] = {ks[place]: secret for place, secret in recovered.secrets[u].items()}

    def _checked_shares(
        self, v: ClientId, reply: NoiseShares, owing: Mapping[ClientId, tuple[int, ...]]
    ) -> unmasking.DisclosedShares:
        """Return the shares that client v disclosed; `owing` has, by dealer, the indices of the secrets to rebuild."""
        places = {u: [FIRST_DEPOSITED + k for k in owing[u]] for u in self._setup.holdings(v) if u in owing}
        return self._parse_shares(v, places, reply.shares)

    def _is_committed(self, u: ClientId, k: int, secret: bytes) -> bool:
        """Tell whether client u committed to `secret` as its deposited secret with index k."""
        expected = self._setup.commitments(u, self.chunk)[1 + k]
        return expected == masking.commitment(self.parameters, self.chunk, u, "noise", k, secret)


def check_shares_length(shares: bytes, count: int, suite: Suite) -> None:
    """Raise MalformedMessage unless `shares` has the length of `count` shares."""
    split(shares, suite.sharing.SHARE_BYTES, count)


def check_chunk(answered: int, asked: int) -> None:
    """Raise ProtocolError if `answered`, the chunk that a reply is for, is not the chunk `asked` for."""
    if answered != asked:
        raise ProtocolError("the reply is for another chunk")


class SecAggServer(SummingServer):
    """The SecAgg server for one round: set-up, then the chunks one after the other.

    `proofs` are the clients' proofs of selection.  `registry` has the clients' public signing keys, with which the
    server verifies signatures in the malicious mode.  The server and all clients use the same `suite` of primitives.
    """

    def __init__(
        self,
        parameters: CohortParameters,
        registry: Registry | None = None,
        proofs: Mapping[ClientId, bytes] | None = None,
        suite: Suite = DEFAULT,
    ) -> None:
        rules.check_rules(parameters)
        self.setup: SetupServer = SetupServer(parameters, registry or {}, proofs or {}, suite)
        self.chunks: list[ChunkServer] = [ChunkServer(self.setup, chunk) for chunk in range(len(parameters.chunks))]


@dataclass(frozen=True)
class SecAggPrediction:
    """The outcome of one SecAgg round; `leaving` has, for each dropout, the request at which it drops out."""

    parameters: CohortParameters
    leaving: Leaving

    def survivors(self) -> tuple[ClientId, ...]:
        """Return the survivors, U3; raise if too few clients answer a stage before the upload."""
        self._check_quorums(STAGES[:_UPLOAD])
        return tuple(self._answering(CollectInput))

    def check_before_disclosure(self) -> None:
        """Raise if the round fails before disclosure: too few clients upload or, in the malicious mode, sign U3."""
        self._check_quorums(STAGES[_UPLOAD:_UNMASK])

    def check_after_disclosure(self) -> None:
        """Raise if too few clients, or too few neighbours of a client, remain to rebuild secrets."""
        self._check_quorums(STAGES[_UNMASK:])
        if not self.parameters.degree:
            return
        there = set(self._answering(Unmask))
        for u in self._answering(ShareKeys):
            if (holders := len(there & self.parameters.neighbourhoods[u])) < self.parameters.threshold:
                raise TooFewClients(Unmask.__name__, holders, self.parameters.threshold)

    def unreleased(self, due: Releases) -> Releases:
        """Return the secrets in `due` that the server cannot obtain: neither from their owner, nor from shares."""
        telling, helping = (set(self._answering(stage)) for stage in (Unmask, RemoveNoise))
        owing = {u: ks for u, ks in due.items() if ks and u not in telling}
        holders = self.parameters.neighbourhoods
        return {u: ks for u, ks in owing.items() if len(helping & holders[ClientId(u)]) < self.parameters.threshold}

    def _answering(self, stage: Stage) -> list[ClientId]:
        """Return the clients that answer a stage and all stages before it."""
        before = {earlier.__name__ for earlier in STAGES[: STAGES.index(stage) + 1]}
        return [u for u in self.parameters.clients if self.leaving.get(u) not in before]

    def _check_quorums(self, stages: Sequence[Stage]) -> None:
        """Raise the error, TooFewClients or TooManyDropouts, that the server would raise at the first failing stage."""
        needed = (Agree, Unmask) if self.parameters.is_malicious else (Unmask,)
        for stage in stages:
            there = self._answering(stage)
            if STAGES.index(stage) <= _UPLOAD:
                ensure_enough(self.parameters, stage.__name__, there)
            elif stage in needed and len(there) < self.parameters.quorum:
                raise TooFewClients(stage.__name__, len(there), self.parameters.quorum)
