"""The SecAgg server: set-up once a round, then the same stages for every chunk.

A reply that is malformed counts as no reply.  The server adds each upload into the sum as it comes: it holds one
vector for each chunk in flight, never one for each client.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TypeVar

import numpy as np

from dordis.crypto import agreement, cipher, sharing
from dordis.errors import CryptoError, InputError, ProtocolError, TooFewClients, TooManyDropouts, Unrecoverable
from dordis.kernels.packing import unpack
from dordis.kernels.ring import Vector
from dordis.privacy.xnoise import Due, context
from dordis.protocol import ClientId, Flow, Message, ProtocolServer, Replies, Resource, Step
from dordis.protocols import parameters as rules
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import checks, masking, recovery, statements
from dordis.protocols.secagg.escrow import Escrow
from dordis.protocols.secagg.masking import KEY_BYTES, split
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    Advertisement,
    Agree,
    Agreement,
    CollectInput,
    DeliverShares,
    EncryptedShares,
    MaskedInput,
    NoiseShares,
    RemoveNoise,
    ShareKeys,
    SharesDelivered,
    Unmask,
    Unmasking,
)
from dordis.protocols.secagg.statements import Registry

Reply = TypeVar("Reply", bound=Message)
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class ChunkOutput:
    """The sum over U3 with exactly the noise that must stay, and what happened on the way."""

    total: Vector = field(repr=False)
    survivors: tuple[ClientId, ...]
    left: Fraction
    """Variance of the noise in the sum."""
    charged: Fraction
    """Variance that the privacy of the survivors may count on."""
    stayed: Due
    """Due components that could not be removed: they are still in the sum."""
    blame: recovery.Pairs
    """Pairs (dealer, holder) with a share that was wrong and was corrected: one of each pair is at fault."""


class SecAggServer(ProtocolServer[tuple[ChunkOutput, ...]]):
    """A whole round: set-up, then the chunks one after the other.

    `proofs` shows that the clients were selected; the `registry` lets the server leave out forged signatures, which
    clients would refuse.
    """

    def __init__(
        self, parameters: Parameters, registry: Registry | None = None, proofs: Mapping[ClientId, bytes] | None = None
    ) -> None:
        rules.check(parameters)
        self.setup = SetupServer(parameters, registry or {}, proofs or {})
        self.chunks = [ChunkServer(self.setup, chunk) for chunk in range(len(parameters.chunks))]

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps of the set-up and of every chunk."""
        return [*self.setup.workflow, *(step for chunk in self.chunks for step in chunk.workflow)]

    def output(self) -> tuple[ChunkOutput, ...]:
        """Return the output of every chunk."""
        return tuple(chunk.output() for chunk in self.chunks)


class SetupServer(ProtocolServer[None]):
    """Stages 0 and 1, once a round: keys are advertised, secrets shared, U2 is closed."""

    def __init__(self, parameters: Parameters, registry: Registry, proofs: Mapping[ClientId, bytes]) -> None:
        self.parameters = parameters
        self.registry = registry
        self._proofs = proofs
        self.keys: dict[ClientId, Advertisement] = {}
        self._seen: set[bytes] = set()
        self.shares: dict[ClientId, EncryptedShares] = {}
        self.ready: tuple[ClientId, ...] = ()

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps in order."""
        return (
            Step(self.advertise_keys, Resource.CLIENT),
            Step(self.share_keys, Resource.CLIENT),
            Step(self.deliver_shares, Resource.CLIENT),
        )

    def output(self) -> None:
        """Return nothing: chunks read what the set-up holds."""

    def advertise_keys(self) -> Flow:
        """Stage 0: collect U1."""
        proofs = {int(u): proof for u, proof in sorted(self._proofs.items())}
        replies = yield dict.fromkeys(self.parameters.clients, AdvertiseKeys(self.parameters, proofs))
        self.keys = collect(self.parameters.clients, Advertisement, replies, self._checked_keys)
        ensure_enough(self.parameters, "AdvertiseKeys", self.keys)

    def _checked_keys(self, u: ClientId, reply: Advertisement) -> Advertisement:
        checks.check_keys_well_formed({u: reply}, self.parameters)
        if self.parameters.is_malicious:
            checks.check_keys_signed({u: reply}, self.parameters, self.registry)
        checks.check_keys_distinct({u: reply}, self.parameters)
        keys = {reply.channel, *split(reply.masking, KEY_BYTES, len(self.parameters.chunks))}
        if not keys.isdisjoint(self._seen):  # whoever comes second has copied
            raise ProtocolError("a public key was advertised before by another client")
        self._seen |= keys
        return reply

    def share_keys(self) -> Flow:
        """Stage 1: collect U2."""
        replies = yield dict.fromkeys(self.keys, ShareKeys({int(u): keys for u, keys in self.keys.items()}))
        self.shares = collect(self.keys, EncryptedShares, replies, self._checked_shares)
        ensure_enough(self.parameters, "ShareKeys", self.shares)

    def _checked_shares(self, u: ClientId, reply: EncryptedShares) -> EncryptedShares:
        peers = (self.keys.keys() & self.parameters.neighbourhoods[u]) - {u}
        checks.check_delivered(reply.ciphertexts.keys(), peers)
        if self.parameters.is_malicious:
            statements.verify(self.registry, u, statements.shares(self.parameters, u, reply), reply.signature)
        shared, chunks = Escrow(self.parameters, 0).shared, len(self.parameters.chunks)
        split(reply.commitments, KEY_BYTES, (shared - 1) * chunks)
        if any(len(sent) != sealed_size(shared * chunks) for sent in reply.ciphertexts.values()):
            raise ProtocolError("a ciphertext has the wrong length")
        return reply

    def deliver_shares(self) -> Flow:
        """End of stage 1: route the ciphertexts; an accusation ends the round."""
        u2 = self.shares
        members = self.parameters.pack(u2)
        replies = yield {v: DeliverShares(members, self._addressed_to(v)) for v in u2}
        accused = collect(u2, SharesDelivered, replies, self._checked_accusation)
        blame = frozenset((dealer, holder) for holder, dealers in accused.items() for dealer in dealers)
        if blame:
            raise Unrecoverable("a client cannot open the shares that another sent to it", blame)
        self.ready = tuple(accused)
        ensure_enough(self.parameters, "DeliverShares", self.ready)

    def _checked_accusation(self, v: ClientId, reply: SharesDelivered) -> tuple[ClientId, ...]:
        dealers = self.parameters.unpack(reply.accused)
        checks.check_subset(set(dealers), self._addressed_to(v).keys(), "an accusation")
        return dealers

    def _addressed_to(self, v: ClientId) -> dict[int, bytes]:
        return {u: self.shares[u].ciphertexts[v] for u in self.holdings(v) if u != v}

    def holdings(self, v: ClientId) -> tuple[ClientId, ...]:
        """Return the members of U2 of whose secrets a client holds shares: its neighbourhood, itself included."""
        return tuple(sorted(self.parameters.neighbourhoods[v] & self.shares.keys()))

    def masking_key(self, u: ClientId, chunk: int) -> bytes:
        """Return a client's public masking key for one chunk."""
        return split(self.keys[u].masking, KEY_BYTES, len(self.parameters.chunks))[chunk]

    def commitments(self, u: ClientId, chunk: int) -> tuple[bytes, ...]:
        """Return a client's commitments for one chunk: self-mask, then removable noise."""
        size = KEY_BYTES * (Escrow(self.parameters, chunk).shared - 1)
        own = self.shares[u].commitments[chunk * size : (chunk + 1) * size]
        return split(own, KEY_BYTES, size // KEY_BYTES)


class ChunkServer(ProtocolServer[ChunkOutput]):
    """Stages 2 to 5 of one chunk; stage 3 only against a malicious server."""

    def __init__(self, setup: SetupServer, chunk: int) -> None:
        self.parameters = setup.parameters
        self.chunk = chunk
        self._setup = setup
        self._escrow = Escrow(setup.parameters, chunk)
        self._total: Vector = np.zeros(0, np.uint32)
        self._blame: set[tuple[int, int]] = set()
        self._tokens: dict[ClientId, bytes] = {}
        self._signatures: dict[ClientId, bytes] = {}
        self.u3: tuple[ClientId, ...] = ()
        self.u4: tuple[ClientId, ...] = ()
        self.u5: tuple[ClientId, ...] = ()
        self._due: Due = {}
        self._seeds: dict[ClientId, Mapping[int, bytes]] = {}
        self._stayed: dict[int, tuple[int, ...]] = {}

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps in order."""
        return (
            Step(self.collect_inputs, Resource.NETWORK),
            Step(self.agree, Resource.SERVER),
            Step(self.unmask, Resource.SERVER),
            Step(self.remove_noise, Resource.SERVER),
        )

    def output(self) -> ChunkOutput:
        """Return the sum and its noise."""
        plan, named = self._escrow.plan, context(self.parameters.round, self.chunk, self.parameters.digest)
        return ChunkOutput(
            total=self._total,
            survivors=self.u3,
            left=plan.left(self.u3, named, self._stayed),
            charged=plan.charged(self.u3, named),
            stayed=self._stayed,
            blame=frozenset(self._blame),
        )

    def collect_inputs(self) -> Flow:
        """Stage 2: add up the masked inputs as they come; U3 is closed."""
        replies = yield dict.fromkeys(self._setup.ready, CollectInput(self.chunk))
        span = self.parameters.chunks[self.chunk]
        self._total = np.zeros(span.stop - span.start, np.uint32)
        upload = np.empty_like(self._total)
        self._tokens = collect(self._setup.ready, MaskedInput, replies, lambda u, reply: self._add(u, reply, upload))
        self.u3 = tuple(sorted(self._tokens))
        ensure_enough(self.parameters, "CollectInput", self.u3)
        self._due = self._escrow.due(self.u3)

    def _add(self, u: ClientId, reply: MaskedInput, upload: Vector) -> bytes:
        """Check an upload whole, then add it whole; return its token."""
        check_chunk(reply.chunk, self.chunk)
        expected = split(self._setup.keys[u].tokens, KEY_BYTES, len(self.parameters.chunks))[self.chunk]
        if masking.token_hash(self.parameters, self.chunk, u, reply.token) != expected:
            raise ProtocolError("the upload token is not the advertised one")
        unpack(reply.vector, self.parameters.bits, upload.size, upload)
        self._total += upload
        return reply.token

    def agree(self) -> Flow:
        """Stage 3, against a malicious server: collect a quorum of signatures on U3."""
        self.u4 = self.u3
        if not self.parameters.is_malicious:
            return
        bitmap = self.parameters.pack(self.u3)
        tokens = b"".join(self._tokens[u] for u in self.u3)
        replies = yield dict.fromkeys(self.u3, Agree(self.chunk, bitmap, tokens))
        statement = statements.survivors(self.parameters, self.chunk, bitmap)
        signatures = collect(self.u3, Agreement, replies, lambda u, reply: self._checked_signature(u, reply, statement))
        self.u4 = tuple(sorted(signatures))
        if len(self.u4) < self.parameters.quorum:
            raise TooFewClients("Agree", len(self.u4), self.parameters.quorum)
        self._signatures = {u: signatures[u] for u in self.u4[: self.parameters.quorum]}

    def _checked_signature(self, u: ClientId, reply: Agreement, statement: bytes) -> bytes:
        check_chunk(reply.chunk, self.chunk)
        statements.verify(self._setup.registry, u, statement, reply.signature)
        return reply.signature

    def unmask(self) -> Flow:
        """Stage 4: collect U5 and remove all masks."""
        signatures = {int(u): signed for u, signed in self._signatures.items()}
        replies = yield dict.fromkeys(self.u4, Unmask(self.chunk, self.parameters.pack(self.u3), signatures))
        answers = collect(self.u4, Unmasking, replies, self._checked_unmasking)
        if len(answers) < self.parameters.quorum:
            raise TooFewClients("Unmask", len(answers), self.parameters.quorum)
        self.u5 = tuple(sorted(answers))
        self._seeds = {u: seeds for u, (_, seeds) in answers.items()}
        held = {u: shares for u, (shares, _) in answers.items()}
        recovered = recovery.recover(self.parameters, held, sorted(self._setup.shares), self._is_right)
        self._blame |= recovered.blame
        survivors = frozenset(self.u3)
        recovery.remove_masks(
            self._total,
            self.parameters,
            self.chunk,
            {u: secret for u, secret in recovered.secrets.items() if u not in survivors},
            {u: secret for u, secret in recovered.secrets.items() if u in survivors},
            {u: self._setup.masking_key(u, self.chunk) for u in self.u3},
        )

    def _checked_unmasking(self, v: ClientId, reply: Unmasking) -> tuple[recovery.Held, Mapping[int, bytes]]:
        """Return a client's shares, by dealer, and the seeds that it disclosed of its own."""
        check_chunk(reply.chunk, self.chunk)
        survivors = frozenset(self.u3)
        lost, alive = ([u for u in self._setup.holdings(v) if (u in survivors) is kept] for kept in (False, True))
        shares = np.concatenate(
            [sharing.from_bytes(reply.key_shares, len(lost)), sharing.from_bytes(reply.mask_shares, len(alive))]
        )
        due = self._due[v]
        if not reply.seeds.keys() <= set(due) or any(len(seed) != KEY_BYTES for seed in reply.seeds.values()):
            raise ProtocolError("the seeds disclosed are not the due ones")
        return recovery.Held((*lost, *alive), shares[:, None]), reply.seeds

    def _is_right(self, u: ClientId, secret: bytes) -> bool:
        """Tell whether a recovered secret is the one that its owner committed to."""
        if u in self.u3:
            return self._setup.commitments(u, self.chunk)[0] == masking.commitment(
                self.parameters, self.chunk, u, "self-mask", 0, secret
            )
        return self._setup.masking_key(u, self.chunk) == agreement.public(secret)

    def remove_noise(self) -> Flow:
        """Stage 5: remove the noise that is due; ask for shares of the seeds that are missing or wrong."""
        owing = {}
        for u in self.u3:
            seeds, ks = self._seeds.get(u, {}), self._due[u]
            wrong = [k for k, seed in seeds.items() if not self._is_committed(u, k, seed)]
            if not wrong and seeds.keys() == set(ks):
                self._remove({(u, k): seeds[k] for k in ks})
            else:
                owing[u] = ks
            if wrong:
                self._blame.add((u, u))
        if not owing:
            self._cut()
            return
        helpers = [v for v in self.u5 if not owing.keys().isdisjoint(self._setup.holdings(v))]
        replies = yield dict.fromkeys(helpers, RemoveNoise(self.chunk, self.parameters.pack(owing)))
        self._recover_noise(owing, replies)
        self._cut()

    def _recover_noise(self, owing: Mapping[ClientId, tuple[int, ...]], replies: Replies) -> None:
        """Rebuild missing seeds from shares; noise whose seed cannot be rebuilt stays and is recorded."""
        held = collect(self.u5, NoiseShares, replies, lambda v, reply: self._checked_noise(v, reply, owing))
        for u, ks in owing.items():
            found, blame = recovery.recover_some(self.parameters, held, u, ks, partial(self._is_committed, u))
            self._remove({(u, k): seed for k, seed in found.items()})
            self._blame |= blame
            stayed = tuple(k for k in ks if k not in found)
            if stayed:
                self._stayed[u] = stayed

    def _checked_noise(
        self, v: ClientId, reply: NoiseShares, owing: Mapping[ClientId, tuple[int, ...]]
    ) -> recovery.Held:
        """Return a client's shares of the seeds wanted, by dealer; all dealers owe as many."""
        check_chunk(reply.chunk, self.chunk)
        dealers = tuple(u for u in self._setup.holdings(v) if u in owing)
        each = len(next(iter(owing.values())))
        shares = sharing.from_bytes(reply.shares, len(dealers) * each)
        return recovery.Held(dealers, shares.reshape(len(dealers), each, sharing.LIMBS))

    def _is_committed(self, u: ClientId, k: int, seed: bytes) -> bool:
        """Tell whether a noise seed is the one that its owner committed to."""
        expected = self._setup.commitments(u, self.chunk)[1 + k]
        return expected == masking.commitment(self.parameters, self.chunk, u, "noise", k, seed)

    def _remove(self, seeds: Mapping[tuple[ClientId, int], bytes]) -> None:
        for (_, k), seed in seeds.items():
            self._escrow.remove_noise(self._total, k, seed)

    def _cut(self) -> None:
        self._total &= np.uint32(2**self.parameters.bits - 1)


def collect(
    asked: Collection[ClientId],
    kind: type[Reply],
    replies: Replies,
    check: Callable[[ClientId, Reply], Parsed],
) -> dict[ClientId, Parsed]:
    """Take one reply of the right kind from each client asked; a malformed one counts as a dropout."""
    accepted: dict[ClientId, Parsed] = {}
    for u, reply in replies:
        if u in accepted or u not in asked or not isinstance(reply, kind):
            continue
        try:
            accepted[u] = check(u, reply)
        except (ProtocolError, CryptoError, InputError):
            continue
    return dict(sorted(accepted.items()))


def ensure_enough(parameters: Parameters, stage: str, clients: Collection[ClientId]) -> None:
    """End the round if too many clients are lost to go on."""
    dropped = len(parameters.clients) - len(clients)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance)
    if len(clients) < parameters.quorum:
        raise TooFewClients(stage, len(clients), parameters.quorum)


def sealed_size(shares: int) -> int:
    """Return the length of a ciphertext that holds so many shares."""
    return shares * sharing.SHARE_BYTES + cipher.TAG_BYTES


def check_chunk(answered: int, asked: int) -> None:
    """Refuse an answer for another chunk."""
    if answered != asked:
        raise ProtocolError("the reply is for another chunk")
