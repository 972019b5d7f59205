"""The server's set-up, once a round (stages 0 and 1): clients advertise public keys, then share their secrets.

U1 are the clients that advertise keys; U2 are the members of U1 that share their secrets among their neighbours.
"""

from collections.abc import Mapping, Sequence
from operator import eq

import numpy as np
import numpy.typing as npt

from dordis.crypto.suite import Suite
from dordis.errors import ProtocolError, Unrecoverable
from dordis.protocol import ClientId, Flow, Resource, Step
from dordis.protocols.cohort import CohortParameters, ensure_enough
from dordis.protocols.secagg import client_checks
from dordis.protocols.secagg.client_checks import Registry
from dordis.protocols.secagg.masking import (
    HASH_BYTES,
    KEY_BYTES,
    encode_dealer,
    encode_holder,
    hashes_length,
    share_hash,
    shared_count,
    split,
)
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    Advertisement,
    DeliverShares,
    EncryptedShares,
    ShareKeys,
    SharesDelivered,
    shares_statement,
)
from dordis.protocols.summing import SummingSetup, collect

Fits = npt.NDArray[np.bool_]


class SetupServer(SummingSetup):
    """The server's stages 0 and 1, once a round: clients advertise keys (U1), then share their secrets (U2)."""

    def __init__(
        self, parameters: CohortParameters, registry: Registry, proofs: Mapping[ClientId, bytes], suite: Suite
    ) -> None:
        self.parameters = parameters
        self.suite = suite
        self.registry = registry
        self._proofs = proofs
        self.keys: dict[ClientId, Advertisement] = {}
        self._seen: set[bytes] = set()
        self.shares: dict[ClientId, EncryptedShares] = {}
        self._dealt: dict[int, dict[ClientId, bytes]] = {}
        self.liars: set[ClientId] = set()
        """Clients that provably lied so far, in the set-up or in any chunk."""

    @property
    def workflow(self) -> Sequence[Step]:
        return (
            Step(self.advertise_keys, Resource.CLIENT),
            Step(self.share_keys, Resource.CLIENT),
            Step(self.deliver_shares, Resource.CLIENT),
        )

    def advertise_keys(self) -> Flow:
        """Stage 0: collect the public keys of clients; the clients that answer are U1."""
        if self.parameters.is_malicious:  # otherwise a client without a registered key would count as a liar
            client_checks.check_registered(self.parameters, self.registry)
        proofs = {int(u): proof for u, proof in sorted(self._proofs.items())}
        replies = yield dict.fromkeys(self.parameters.clients, AdvertiseKeys(self.parameters, proofs))
        self.keys = collect(self.parameters.clients, Advertisement, replies, self._checked_keys, self.liars)
        ensure_enough(self.parameters, "AdvertiseKeys", self.keys, self.liars)

    def _checked_keys(self, u: ClientId, reply: Advertisement) -> Advertisement:
        client_checks.check_keys_well_formed({u: reply}, self.parameters, self.suite)
        if self.parameters.is_malicious:
            client_checks.check_keys_signed({u: reply}, self.parameters, self.registry, self.suite)
        client_checks.check_keys_distinct({u: reply}, self.parameters)
        keys = {reply.channel, *split(reply.masking, KEY_BYTES, len(self.parameters.chunks))}
        if not keys.isdisjoint(self._seen):  # the later client is taken to have copied the key
            raise ProtocolError("a public key was advertised before by another client")
        self._seen |= keys
        return reply

    def share_keys(self) -> Flow:
        """Stage 1: collect the encrypted shares from the clients in U1; the clients that answer are U2."""
        replies = yield dict.fromkeys(self.keys, ShareKeys({int(u): keys for u, keys in self.keys.items()}))
        self.shares = collect(self.keys, EncryptedShares, replies, self._checked_shares, self.liars)
        ensure_enough(self.parameters, "ShareKeys", self.shares, self.liars)

    def _checked_shares(self, u: ClientId, reply: EncryptedShares) -> EncryptedShares:
        peers = (self.keys.keys() & self.parameters.neighbourhoods[u]) - {u}
        client_checks.check_delivered(reply.ciphertexts.keys(), peers)
        if self.parameters.is_malicious:
            statement = shares_statement(self.parameters, u, reply)
            client_checks.verify_statement(self.suite, self.registry, u, statement, reply.signature)
        shared, chunks = shared_count(self.parameters, 0), len(self.parameters.chunks)
        split(reply.commitments, KEY_BYTES, (shared - 1) * chunks)
        hashed = hashes_length(self.parameters)
        length = shared * chunks * self.suite.sharing.SHARE_BYTES + self.suite.cipher.TAG_BYTES + hashed
        if any(len(sent) != length for sent in reply.ciphertexts.values()) or len(reply.hashes) != hashed:
            raise ProtocolError("a ciphertext or the hashes have the wrong length")
        return reply

    def deliver_shares(self) -> Flow:
        """End of stage 1: send clients in U2 their shares; raise Unrecoverable if one reports unusable shares."""
        u2 = self.shares
        members = self.parameters.pack(u2)
        replies = yield {v: DeliverShares(members, self._addressed_to(v)) for v in u2}
        accused = collect(u2, SharesDelivered, replies, self._checked_accusation, self.liars)
        accusations = frozenset((dealer, holder) for holder, dealers in accused.items() for dealer in dealers)
        if accusations:
            why = "a client cannot use the shares that another sent to it"
            raise Unrecoverable(why, frozenset(self.liars), accusations)
        self.ready = tuple(accused)
        ensure_enough(self.parameters, "DeliverShares", self.ready, self.liars)

    def _checked_accusation(self, v: ClientId, reply: SharesDelivered) -> tuple[ClientId, ...]:
        dealers = self.parameters.unpack(reply.accused)
        client_checks.check_subset(set(dealers), self._addressed_to(v).keys(), "an accusation")
        return dealers

    def _addressed_to(self, v: ClientId) -> dict[int, bytes]:
        return {u: self.shares[u].ciphertexts[v] for u in self.holdings(v) if u != v}

    def fits(
        self, chunk: int, holder: ClientId, wanted: Sequence[tuple[ClientId, int]], shares: Sequence[bytes]
    ) -> Fits:
        """Tell for each share that `holder` disclosed whether the share hashes to the value that its dealer sent.

        `wanted` has, for each share, its dealer (the client whose secret is shared), and the index of the secret.
        """
        count, sent = shared_count(self.parameters, chunk), self.shares
        ends = range(HASH_BYTES * (chunk * count + 1) - hashes_length(self.parameters), 1, HASH_BYTES)
        spans = [slice(end - HASH_BYTES, end or None) for end in ends]  # a dealer's message ends with the hashes
        if chunk not in self._dealt:
            self._dealt[chunk] = {u: encode_dealer(self.parameters, chunk, u) for u in sent}
        dealers, holders = self._dealt[chunk], [encode_holder(holder, place) for place in range(count)]
        shown = [share_hash(dealers[u], holders[k], share) for (u, k), share in zip(wanted, shares, strict=True)]
        promised = [
            (sent[u].ciphertexts[holder] if u != holder else sent[u].hashes)[spans[place]] for u, place in wanted
        ]
        return np.fromiter(map(eq, shown, promised), np.bool_, len(wanted))

    def holdings(self, v: ClientId) -> tuple[ClientId, ...]:
        """Return the members of U2 that shared their secrets with client v: its neighbours, and v itself."""
        return tuple(sorted(self.parameters.neighbourhoods[v] & self.shares.keys()))

    def masking_key(self, u: ClientId, chunk: int) -> bytes:
        """Return a client's public masking key for one chunk."""
        return split(self.keys[u].masking, KEY_BYTES, len(self.parameters.chunks))[chunk]

    def commitments(self, u: ClientId, chunk: int) -> tuple[bytes, ...]:
        """Return a client's commitments for one chunk: to the self-mask seed, then to the deposited secrets."""
        size = KEY_BYTES * (shared_count(self.parameters, chunk) - 1)
        own = self.shares[u].commitments[chunk * size : (chunk + 1) * size]
        return split(own, KEY_BYTES, size // KEY_BYTES)
