"""The SecAgg client: its state, and its answers, stage by stage.

A client that is restored after a restart needs the same input as before, because chunks of it may have been uploaded.
U1 are the clients that advertise keys, U2 those of them that share their secrets, U3 the survivors of a chunk.
"""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from dordis.crypto.prg import check_ring
from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import DecryptionFailed, InputError, ParametersRefused, ProtocolError, SharingError
from dordis.kernels.ring import pack
from dordis.privacy.encoding import Entropy
from dordis.protocol import ClientId, Journal, On
from dordis.protocols import parameters as rules
from dordis.protocols.cohort import CohortParameters, CohortState
from dordis.protocols.escrow import IssuedSecrets, draw_secrets
from dordis.protocols.secagg import client_checks, masking
from dordis.protocols.secagg.client_checks import Registry
from dordis.protocols.secagg.masking import (
    FIRST_DEPOSITED,
    KEY,
    KEY_BYTES,
    SELF_MASK,
    Channel,
    Secrets,
    share_hashes,
    shared_count,
    split,
    split_hashes,
)
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    Advertisement,
    Agree,
    Agreement,
    CollectInput,
    DeliverShares,
    EncryptedShares,
    InputReady,
    MaskedInput,
    NoiseShares,
    PrepareInput,
    RemoveNoise,
    ShareKeys,
    SharesDelivered,
    Unmask,
    Unmasking,
    keys_statement,
    shares_statement,
    survivors_statement,
)
from dordis.protocols.summing import SumInput, SummingClient, require_parameters


class SecAggState(CohortState):
    """The state of a SecAgg client: parameters, own secrets, neighbours' keys and shares, and U3 of each chunk."""

    channel: bytes = b""
    secrets: dict[int, Secrets] = msgspec.field(default_factory=dict)
    advertisements: dict[int, Advertisement] = msgspec.field(default_factory=dict)
    own_shares: bytes = b""
    shares: dict[int, bytes] = msgspec.field(default_factory=dict)
    members: bytes = b""
    accused: bool = False
    survivors: dict[int, bytes] = msgspec.field(default_factory=dict)


class SecAggClient(SummingClient[SecAggState]):
    """The SecAgg client for one round.

    In the malicious mode it needs its private `signing` key, and the `registry` of all public signing keys.  The
    `suite` of cryptographic primitives is the same for all clients and the server.  The caller has obtained the owner's
    consent.
    """

    def __init__(
        self,
        me: ClientId,
        given: SumInput,
        journal: Journal | None = None,
        state: SecAggState | None = None,
        entropy: Entropy = secrets.token_bytes,
        signing: bytes = b"",
        registry: Registry | None = None,
        suite: Suite = DEFAULT,
    ) -> None:
        if state is not None and journal is None:
            raise InputError("restore a client together with its journal: without it a request gets a second answer")
        super().__init__(me, given, state or SecAggState(), journal, entropy)
        self._signing = signing
        self._registry = registry or {}
        self._suite = suite
        # Caches, computed from state and input: secrets agreed with peers, and uploads prepared ahead.
        self._agreed: dict[ClientId, bytes] = {}
        self._prepared: dict[int, bytes] = {}

    @property
    def setup(self) -> Sequence[On[Any]]:
        """Return the requests of stages 0 and 1, answered once a round, each with the method that answers it."""
        return (
            On(AdvertiseKeys, self.advertise_keys),
            On(ShareKeys, self.share_keys),
            On(DeliverShares, self.open_shares),
        )

    @property
    def routine(self) -> Sequence[On[Any]]:
        """Return the requests of stages 2 to 5, answered for every chunk, each with the method that answers it."""
        return (
            On(PrepareInput, self.prepare_input, optional=True),
            On(CollectInput, self.upload_input),
            On(Agree, self.agree, optional=not self._parameters.is_malicious),
            On(Unmask, self.unmask),
            On(RemoveNoise, self.share_noise, optional=True),
        )

    @property
    def _parameters(self) -> CohortParameters:
        return require_parameters(self.state.parameters)

    def advertise_keys(self, request: AdvertiseKeys) -> Advertisement:
        """Stage 0: check the parameters, draw all secrets of the round, and return the public keys."""
        parameters = request.parameters
        rules.check_rules(parameters)
        client_checks.check_member(parameters, self.me)
        if parameters.is_malicious:
            if not self._signing:
                raise ParametersRefused("the malicious mode needs a signing key")
            client_checks.check_registered(parameters, self._registry)
        self.input.check(parameters)
        check_ring(self.input.vector, parameters.bits)
        client_checks.check_length(self.input.vector, parameters)
        self.state.parameters = parameters
        self.state.channel = self._suite.agreement.generate(self._entropy)
        self.state.secrets = {chunk: self._make_secrets(chunk) for chunk in range(self.chunks)}
        return self._advertisement()

    def _make_secrets(self, chunk: int) -> Secrets:
        return Secrets(
            masking=self._suite.agreement.generate(self._entropy),
            self_mask=self._entropy(KEY_BYTES),
            token=self._entropy(KEY_BYTES),
            issued=draw_secrets(self._parameters.escrow(chunk), self._entropy),
        )

    def issued(self, chunk: int) -> IssuedSecrets:
        return self.state.secrets[chunk].issued

    def _advertisement(self) -> Advertisement:
        own = [self.state.secrets[chunk] for chunk in range(self.chunks)]
        hashes = (masking.token_hash(self._parameters, chunk, self.me, s.token) for chunk, s in enumerate(own))
        unsigned = Advertisement(
            channel=self._suite.agreement.public_key(self.state.channel),
            masking=b"".join(self._suite.agreement.public_key(s.masking) for s in own),
            tokens=b"".join(hashes),
        )
        signed = self._sign(keys_statement(self._parameters, self.me, unsigned))
        return msgspec.structs.replace(unsigned, signature=signed)

    def _sign(self, statement: bytes) -> bytes:
        """Return the signature of a statement; empty in the semi-honest mode."""
        return self._suite.signature.sign(self._signing, statement) if self._parameters.is_malicious else b""

    def share_keys(self, request: ShareKeys) -> EncryptedShares:
        """Stage 1: share all secrets among the neighbours that advertised keys (U1), and commit to the secrets."""
        parameters, advertisements = self._parameters, request.advertisements
        u1 = advertisements.keys()
        client_checks.check_subset(u1, parameters.rank.keys(), "U1")
        client_checks.check_present(u1, self.me, "U1")
        client_checks.check_enough(u1, parameters, "U1")
        client_checks.check_keys_well_formed(advertisements, parameters, self._suite)
        client_checks.check_own_keys(advertisements, self.me, self._advertisement())
        client_checks.check_keys_distinct(advertisements, parameters)
        if parameters.is_malicious:
            client_checks.check_keys_signed(advertisements, parameters, self._registry, self._suite)
        self.state.advertisements = advertisements
        peers = sorted(parameters.neighbourhoods[self.me] & u1)
        client_checks.check_neighbours(u1, parameters, self.me)
        own, sharing = [self.state.secrets[chunk] for chunk in range(self.chunks)], self._suite.sharing
        shares = sharing.split(
            [secret for chunk in own for secret in chunk.shared],
            [parameters.point(u) for u in peers],
            parameters.threshold,
            self._entropy,
        )
        plaintexts = dict(zip(peers, (sharing.to_bytes(share) for share in shares), strict=True))
        self.state.own_shares = plaintexts.pop(self.me)
        unsigned = EncryptedShares(
            ciphertexts={
                v: self._channel(self.me, v).encrypt(share) + share_hashes(parameters, self.me, v, share)
                for v, share in plaintexts.items()
            },
            commitments=b"".join(
                commitment
                for chunk, s in enumerate(own)
                for commitment in masking.commitments(parameters, chunk, self.me, s.self_mask, s.issued.deposited)
            ),
            hashes=share_hashes(parameters, self.me, self.me, self.state.own_shares),
        )
        signed = self._sign(shares_statement(parameters, self.me, unsigned))
        return msgspec.structs.replace(unsigned, signature=signed)

    def _channel(self, sender: ClientId, receiver: ClientId) -> Channel:
        peer = receiver if sender == self.me else sender
        keys = {u: self.state.advertisements[u].channel for u in (sender, receiver)}
        if peer not in self._agreed:
            self._agreed[peer] = self._suite.agreement.agree(self.state.channel, keys[peer])
        return Channel(self._suite, self._parameters, sender, receiver, [*keys.values()], self._agreed[peer])

    def close(self) -> None:
        self._agreed.clear()
        self._prepared.clear()
        super().close()

    def open_shares(self, request: DeliverShares) -> SharesDelivered:
        """End of stage 1: decrypt the shares from neighbours in U2; accuse the neighbours whose shares are unusable."""
        parameters, ciphertexts = self._parameters, request.ciphertexts
        u2 = frozenset(parameters.unpack(request.members))
        client_checks.check_subset(u2, self.state.advertisements.keys(), "U2")
        client_checks.check_present(u2, self.me, "U2")
        client_checks.check_enough(u2, parameters, "U2")
        client_checks.check_tolerated(u2, parameters)
        client_checks.check_neighbours(u2, parameters, self.me)
        client_checks.check_delivered(ciphertexts.keys(), (u2 & parameters.neighbourhoods[self.me]) - {self.me})
        self.state.members = request.members
        accused = []
        self.state.shares = {self.me: self.state.own_shares}
        for u, sent in ciphertexts.items():
            try:
                self.state.shares[u] = self._open_ciphertext(ClientId(u), sent)
            except (DecryptionFailed, ProtocolError, SharingError):
                accused.append(ClientId(u))
        self.state.accused = bool(accused)
        return SharesDelivered(accused=parameters.pack(accused))

    def _open_ciphertext(self, u: ClientId, sent: bytes) -> bytes:
        """Return the decrypted shares from client u; raise if their number, range or hashes are wrong."""
        ciphertext, hashed = split_hashes(self._parameters, sent)
        share, sharing = self._channel(u, self.me).decrypt(ciphertext), self._suite.sharing
        client_checks.check_share_length(share, self.state.own_shares)
        sharing.from_bytes(share, len(share) // sharing.SHARE_BYTES)
        client_checks.check_share_fits(self._parameters, u, self.me, share, hashed)
        return share

    def prepare_input(self, request: PrepareInput) -> InputReady:
        """Stage 2, ahead of the upload: compute the masked input of a chunk, and keep it for the upload."""
        client_checks.check_nobody_accused(self.state.accused)
        self._prepared[request.chunk] = self._mask_input(request.chunk)
        return InputReady(request.chunk)

    def upload_input(self, request: CollectInput) -> MaskedInput:
        """Stage 2: return the masked input, computed now if it was not prepared."""
        client_checks.check_nobody_accused(self.state.accused)
        chunk = request.chunk
        vector = self._prepared.pop(chunk, None)
        return MaskedInput(
            chunk=chunk,
            vector=self._mask_input(chunk) if vector is None else vector,
            token=self.state.secrets[chunk].token,
        )

    def _mask_input(self, chunk: int) -> bytes:
        """Return the input to a chunk plus its self-mask and pairwise masks (with neighbours in U2), packed."""
        parameters, own = self._parameters, self.state.secrets[chunk]
        y = self.input.chunk(parameters, chunk, own.issued)
        peers = {
            ClientId(v): split(self.state.advertisements[v].masking, KEY_BYTES, self.chunks)[chunk]
            for v in self.state.shares.keys() - {self.me}
        }
        masking.add_masks(self._suite, y, parameters, chunk, self.me, own, peers)
        return pack(y, parameters.bits).tobytes()

    def agree(self, request: Agree) -> Agreement:
        """Stage 3: sign U3, the survivors of a chunk, after checking the tokens that prove their uploads."""
        parameters, chunk = self._parameters, request.chunk
        u3 = self._checked_survivors(request.survivors)
        client_checks.check_tokens(sorted(u3), request.tokens, self.state.advertisements, parameters, chunk)
        self.state.survivors[chunk] = request.survivors
        return Agreement(chunk, self._sign(survivors_statement(parameters, chunk, request.survivors)))

    def _checked_survivors(self, bitmap: bytes) -> frozenset[ClientId]:
        parameters = self._parameters
        u3 = frozenset(parameters.unpack(bitmap))
        client_checks.check_subset(u3, set(parameters.unpack(self.state.members)), "U3")
        client_checks.check_present(u3, self.me, "U3")
        client_checks.check_enough(u3, parameters, "U3")
        client_checks.check_tolerated(u3, parameters)
        return u3

    def unmask(self, request: Unmask) -> Unmasking:
        """Stage 4: disclose shares of the survivors' self-mask seeds and of the dropouts' masking keys.

        Disclose also those of this client's own deposited secrets that are due for release (`Escrow.releases`).
        """
        parameters, chunk = self._parameters, request.chunk
        u3 = self._checked_survivors(request.survivors)
        if parameters.is_malicious:
            client_checks.check_same_survivors(self.state.survivors.get(chunk), request.survivors)
            signed = request.signatures
            client_checks.check_quorum_signed(parameters, chunk, request.survivors, signed, self._registry, self._suite)
        self.state.survivors[chunk] = request.survivors
        due = parameters.escrow(chunk).releases(u3)[self.me]
        held = self.state.shares.keys()
        return Unmasking(
            chunk=chunk,
            key_shares=b"".join(self._share(u, chunk, KEY) for u in sorted(held - u3)),
            mask_shares=b"".join(self._share(u, chunk, SELF_MASK) for u in sorted(held & u3)),
            seeds={k: self.issued(chunk).deposited[k] for k in due},
        )

    def share_noise(self, request: RemoveNoise) -> NoiseShares:
        """Stage 5: disclose shares of deposited secrets that survivors in `request.owing` did not disclose in stage 4.

        The client discloses only shares of secrets that `parameters.escrow` releases for the chunk's U3, as agreed in
        stage 4.  Raise ProtocolError if `request.owing` is empty, or has a client of which no secret is released.
        """
        parameters, chunk = self._parameters, request.chunk
        u3 = parameters.unpack(self.state.survivors[chunk])
        due = {u: ks for u, ks in parameters.escrow(chunk).releases(u3).items() if ks}
        owing = frozenset(parameters.unpack(request.owing))
        client_checks.check_not_empty(owing, "the request to remove noise")
        client_checks.check_subset(owing, due.keys(), "the request to remove noise")
        held = sorted(owing & self.state.shares.keys())
        shares = (self._share(u, chunk, FIRST_DEPOSITED + k) for u in held for k in due[u])
        return NoiseShares(chunk=chunk, shares=b"".join(shares))

    def _share(self, dealer: int, chunk: int, place: int) -> bytes:
        """Return the share that this client holds of a secret of `dealer` in a chunk; `place` is the secret's index."""
        size = self._suite.sharing.SHARE_BYTES
        start = size * (chunk * shared_count(self._parameters, chunk) + place)
        return self.state.shares[dealer][start : start + size]
