"""The SecAgg server: set-up once a round, then the same stages for every chunk.

A reply that is malformed counts as no reply.  The server adds each upload into the sum as it comes: it holds one
vector for each chunk in flight, never one for each client.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

import numpy as np

from dordis.crypto import agreement, sharing
from dordis.errors import CryptoError, InputError, ProtocolError, TooFewClients, TooManyDropouts, Unrecoverable
from dordis.kernels.packing import unpack
from dordis.kernels.ring import Vector
from dordis.privacy.xnoise import Due, context
from dordis.protocol import ClientId, Flow, Message, ProtocolServer, Replies, Resource, Step
from dordis.protocols import parameters as rules
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import checks, masking, recovery
from dordis.protocols.secagg.escrow import Escrow
from dordis.protocols.secagg.masking import KEY_BYTES, split
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    Advertisement,
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
    """A whole round: set-up, then the chunks one after the other."""

    def __init__(self, parameters: Parameters) -> None:
        rules.check(parameters)
        self.setup = SetupServer(parameters)
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

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.keys: dict[ClientId, Advertisement] = {}
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
        replies = yield dict.fromkeys(self.parameters.clients, AdvertiseKeys(self.parameters))
        self.keys = collect(self.parameters.clients, Advertisement, replies, self._checked_keys)
        ensure_enough(self.parameters, "AdvertiseKeys", self.keys)

    def _checked_keys(self, u: ClientId, reply: Advertisement) -> Advertisement:
        checks.check_keys_well_formed({u: reply}, self.parameters)
        return reply

    def share_keys(self) -> Flow:
        """Stage 1: collect U2."""
        replies = yield dict.fromkeys(self.keys, ShareKeys({int(u): keys for u, keys in self.keys.items()}))
        self.shares = collect(self.keys, EncryptedShares, replies, self._checked_shares)
        ensure_enough(self.parameters, "ShareKeys", self.shares)

    def _checked_shares(self, u: ClientId, reply: EncryptedShares) -> EncryptedShares:
        if reply.ciphertexts.keys() != self.keys.keys() - {u}:
            raise ProtocolError("there must be a ciphertext for every other member of U1")
        shared = Escrow(self.parameters, 0).shared
        split(reply.commitments, KEY_BYTES, (shared - 1) * len(self.parameters.chunks))
        return reply

    def deliver_shares(self) -> Flow:
        """End of stage 1: route the ciphertexts; an accusation ends the round."""
        u2 = self.shares
        replies = yield {v: DeliverShares({u: u2[u].ciphertexts[v] for u in u2 if u != v}) for v in u2}
        accused = collect(u2, SharesDelivered, replies, lambda _, reply: self.parameters.unpack(reply.accused))
        blame = frozenset((dealer, holder) for holder, dealers in accused.items() for dealer in dealers)
        if blame:
            raise Unrecoverable("a client cannot open the shares that another sent to it", blame)
        self.ready = tuple(accused)
        ensure_enough(self.parameters, "DeliverShares", self.ready)

    def masking_key(self, u: ClientId, chunk: int) -> bytes:
        """Return a client's public masking key for one chunk."""
        return split(self.keys[u].masking, KEY_BYTES, len(self.parameters.chunks))[chunk]

    def commitments(self, u: ClientId, chunk: int) -> tuple[bytes, ...]:
        """Return a client's commitments for one chunk: self-mask, then removable noise."""
        each = Escrow(self.parameters, chunk).shared - 1
        everything = split(self.shares[u].commitments, KEY_BYTES, each * len(self.parameters.chunks))
        return everything[chunk * each : (chunk + 1) * each]


class ChunkServer(ProtocolServer[ChunkOutput]):
    """Stages 2, 4 and 5 of one chunk."""

    def __init__(self, setup: SetupServer, chunk: int) -> None:
        self.parameters = setup.parameters
        self.chunk = chunk
        self._setup = setup
        self._escrow = Escrow(setup.parameters, chunk)
        self._total: Vector = np.zeros(0, np.uint32)
        self._blame: set[tuple[int, int]] = set()
        self.u3: tuple[ClientId, ...] = ()
        self.u5: tuple[ClientId, ...] = ()
        self._seeds: dict[ClientId, Mapping[int, bytes]] = {}
        self._stayed: dict[int, tuple[int, ...]] = {}

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps in order."""
        return (
            Step(self.collect_inputs, Resource.NETWORK),
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
        arrived = collect(self._setup.ready, MaskedInput, replies, lambda u, reply: self._add(u, reply, upload))
        self.u3 = tuple(sorted(arrived))
        ensure_enough(self.parameters, "CollectInput", self.u3)

    def _add(self, u: ClientId, reply: MaskedInput, upload: Vector) -> None:
        """Check an upload whole, then add it whole."""
        check_chunk(reply.chunk, self.chunk)
        expected = split(self._setup.keys[u].tokens, KEY_BYTES, len(self.parameters.chunks))[self.chunk]
        if masking.token_hash(self.parameters, self.chunk, u, reply.token) != expected:
            raise ProtocolError("the upload token is not the advertised one")
        unpack(reply.vector, self.parameters.bits, upload.size, upload)
        self._total += upload

    def unmask(self) -> Flow:
        """Stage 4: collect U5 and remove all masks."""
        replies = yield dict.fromkeys(self.u3, Unmask(self.chunk, self.parameters.pack(self.u3)))
        u2, u3 = sorted(self._setup.shares), frozenset(self.u3)
        lost = tuple(u for u in u2 if u not in u3)
        due = self._escrow.due(self.u3)
        answers = collect(
            self.u3, Unmasking, replies, lambda u, reply: self._checked_unmasking(reply, len(lost), due[u])
        )
        if len(answers) < self.parameters.threshold:
            raise TooFewClients("Unmask", len(answers), self.parameters.threshold)
        self.u5 = tuple(sorted(answers))
        self._seeds = {u: answers[u].seeds for u in self.u5}
        dealers = (*lost, *self.u3)
        rows = [sharing.from_bytes(answers[v].key_shares + answers[v].mask_shares, len(dealers)) for v in self.u5]
        secrets, blame = recovery.recover(self.parameters, self.u5, dealers, np.stack(rows), self._is_right)
        self._blame |= blame
        recovery.remove_masks(
            self._total,
            self.parameters,
            self.chunk,
            {u: secrets[u] for u in lost},
            {u: secrets[u] for u in self.u3},
            {
                u: split(self._setup.keys[u].masking, KEY_BYTES, len(self.parameters.chunks))[self.chunk]
                for u in self.u3
            },
        )

    def _checked_unmasking(self, reply: Unmasking, lost: int, due: Collection[int]) -> Unmasking:
        check_chunk(reply.chunk, self.chunk)
        sharing.from_bytes(reply.key_shares, lost)
        sharing.from_bytes(reply.mask_shares, len(self.u3))
        if not reply.seeds.keys() <= set(due) or any(len(seed) != KEY_BYTES for seed in reply.seeds.values()):
            raise ProtocolError("the seeds disclosed are not the due ones")
        return reply

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
        for u, ks in self._escrow.due(self.u3).items():
            seeds = self._seeds.get(ClientId(u), {})
            right = all(k in seeds and self._is_committed(ClientId(u), k, seeds[k]) for k in ks)
            if right:
                self._remove({(ClientId(u), k): seeds[k] for k in ks})
            else:
                owing[ClientId(u)] = ks
        if not owing:
            self._cut()
            return
        replies = yield dict.fromkeys(self.u5, RemoveNoise(self.chunk, self.parameters.pack(owing)))
        self._recover_noise(owing, replies)
        self._cut()

    def _recover_noise(self, owing: Mapping[ClientId, tuple[int, ...]], replies: Replies) -> None:
        """Rebuild missing seeds from shares; noise whose seed cannot be rebuilt stays and is recorded."""
        wanted = [(u, k) for u in sorted(owing) for k in owing[u]]
        answers = collect(self.u5, NoiseShares, replies, lambda _, reply: self._checked_noise(reply, len(wanted)))
        found = recovery.recover_each(self.parameters, answers, wanted, lambda u, k, s: self._is_committed(u, k, s))
        self._remove(found.secrets)
        self._blame |= found.blame
        for u, k in wanted:
            if (u, k) not in found.secrets:
                self._stayed[u] = (*self._stayed.get(u, ()), k)

    def _checked_noise(self, reply: NoiseShares, count: int) -> sharing.Shares:
        check_chunk(reply.chunk, self.chunk)
        return sharing.from_bytes(reply.shares, count)

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
    return accepted


def ensure_enough(parameters: Parameters, stage: str, clients: Collection[ClientId]) -> None:
    """End the round if too many clients are lost to go on."""
    dropped = len(parameters.clients) - len(clients)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance)
    if len(clients) < parameters.threshold:
        raise TooFewClients(stage, len(clients), parameters.threshold)


def check_chunk(answered: int, asked: int) -> None:
    """Refuse an answer for another chunk."""
    if answered != asked:
        raise ProtocolError("the reply is for another chunk")
