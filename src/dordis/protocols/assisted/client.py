"""The assisted client: it sends one message, then may leave the round."""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dordis.crypto.prg import check_ring
from dordis.crypto.suite import DEFAULT, Suite
from dordis.kernels.ring import Vector, pack
from dordis.privacy.encoding import Entropy
from dordis.protocol import ENCODER, ClientId, Journal, On
from dordis.protocols import parameters as rules
from dordis.protocols.assisted import checks
from dordis.protocols.assisted.messages import (
    VERSION,
    Header,
    SendContribution,
    SignedContribution,
    commit_seed,
    header_statement,
    join_pieces,
    mask_stream,
    piece,
)
from dordis.protocols.assisted.parameters import AssistedParameters
from dordis.protocols.escrow import SECRET_BYTES, IssuedSecrets
from dordis.protocols.one_message import seal_boxes
from dordis.protocols.summing import SumInput, SummingClient, SummingState, helper_keys, require_parameters

BOX = "assisted-box"
"""Label for deriving the keys of boxes.  A box has, encrypted to one helper, the seeds that a client sends to it."""


class AssistedState(SummingState):
    """The state of a client: parameters, a seed for each set of helpers, and private secrets for each chunk."""

    parameters: AssistedParameters | None = None
    seeds: tuple[bytes, ...] = ()
    private: dict[int, tuple[bytes, ...]] = msgspec.field(default_factory=dict)


class AssistedClient(SummingClient[AssistedState]):
    """One client in one round; it needs its private `signing` key and the registry with the helpers' public keys."""

    routine = ()

    def __init__(
        self,
        me: ClientId,
        given: SumInput,
        *,
        signing: bytes,
        registry: Mapping[ClientId, bytes],
        suite: Suite = DEFAULT,
        journal: Journal | None = None,
        entropy: Entropy = secrets.token_bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(me, given, AssistedState(), journal, entropy)
        self._signing, self._helpers = signing, helper_keys(registry)
        self._suite, self._clock = suite, clock

    @property
    def setup(self) -> Sequence[On[Any]]:
        return (On(SendContribution, self.contribute),)

    @property
    def _parameters(self) -> AssistedParameters:
        return require_parameters(self.state.parameters)

    def contribute(self, request: SendContribution) -> SignedContribution:
        """Check the parameters, draw all secrets, and return the contribution: signed header, boxes, masked input."""
        parameters, state = request.parameters, self.state
        self.check(parameters)
        state.parameters = parameters
        state.seeds = tuple(self._entropy(SECRET_BYTES) for _ in parameters.sets)
        state.private = {
            chunk: tuple(self._entropy(SECRET_BYTES) for _ in range(parameters.escrow(chunk).private))
            for chunk in range(self.chunks)
        }
        vector = pack(self._masked(parameters), parameters.bits).tobytes()
        key, boxes = self._boxes(parameters)
        header = ENCODER.encode(self._header(parameters, key, boxes, vector))
        signature = self._suite.signature.sign(self._signing, header_statement(header))
        return SignedContribution(header, signature, b"".join(boxes), vector)

    def check(self, parameters: AssistedParameters) -> None:
        """Raise if the parameters break a rule, a helper's key is invalid, or the input does not fit the parameters."""
        rules.check_rules(parameters)
        checks.check_signing_key(self._signing)
        checks.check_helpers_registered(parameters, self._helpers)
        checks.check_epoch_keys_signed(parameters, self._helpers, self._suite)
        checks.check_epoch_keys_fresh(parameters, self._clock())
        checks.check_epoch_keys_well_formed(parameters, self._suite)
        self.input.check(parameters)
        check_ring(self.input.vector, parameters.bits)
        checks.check_length(self.input.vector, parameters)

    def issued(self, chunk: int) -> IssuedSecrets:
        """Return the private and the deposited secrets of a chunk.

        A deposited secret is joined from its pieces, one from the client's seed for each set of helpers.
        """
        parameters, seeds = self._parameters, self.state.seeds
        deposited = (
            join_pieces(piece(parameters, chunk, self.me, rank, k, seed) for rank, seed in enumerate(seeds))
            for k in range(parameters.escrow(chunk).deposited)
        )
        return IssuedSecrets(self.state.private[chunk], tuple(deposited))

    def _masked(self, parameters: AssistedParameters) -> Vector:
        """Return the client's input to all chunks, with noise, plus one mask for each set of helpers."""
        chunks = [self.input.chunk(parameters, chunk, self.issued(chunk)) for chunk in range(self.chunks)]
        y = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        masks = [
            mask_stream(self._suite, parameters, self.me, rank, seed) for rank, seed in enumerate(self.state.seeds)
        ]
        self._suite.prg.add_masks(y, masks, [], parameters.bits)
        return y

    def _boxes(self, parameters: AssistedParameters) -> tuple[bytes, list[bytes]]:
        """Return a fresh public key of the client, and the boxes, in the order of the helpers' ids.

        The box of a helper has the client's seeds for all sets that the helper is in.  The list has no entry for a
        helper without a key.
        """
        keys = {int(h): key.key for h, key in parameters.helpers.items() if key is not None}
        seeds = {h: b"".join(self.state.seeds[rank] for rank in parameters.ranks[ClientId(h)]) for h in keys}
        public, boxes = seal_boxes(self._suite, parameters, self.me, keys, seeds, self._entropy, use=BOX)
        return public, [boxes[h] for h in sorted(boxes)]

    def _header(self, parameters: AssistedParameters, key: bytes, boxes: Sequence[bytes], vector: bytes) -> Header:
        commitments = (commit_seed(parameters, self.me, rank, seed) for rank, seed in enumerate(self.state.seeds))
        return Header(
            version=VERSION,
            round=parameters.round,
            parameters=parameters.digest,
            client=int(self.me),
            key=key,
            boxes=b"".join(hashlib.sha256(box).digest() for box in boxes),
            seeds=b"".join(commitments),
            vector=hashlib.sha256(vector).digest(),
            length=len(vector),
            proof=self.selection_proof,
        )
