"""A round led by a server that may deviate at any step, and what the adversary can compute from what it is told.

Every step does what the protocol says unless it is told otherwise.  Honest clients are real ones, and what is sent to
them and by them goes through the codec.  `secrets` and `inputs` are the examiner's knowledge, never the adversary's:
they serve to tell whether it succeeded.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dordis import wire
from dordis.adversary.cast import honest_client, keys_of, random_vector
from dordis.crypto import prg, sharing, signature
from dordis.crypto.suite import DEFAULT
from dordis.kernels.packing import unpack
from dordis.kernels.ring import Vector
from dordis.privacy.noise import add_noise
from dordis.privacy.xnoise import context
from dordis.protocol import ClientId, Message
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import masking, recovery
from dordis.protocols.secagg.consent import Owner
from dordis.protocols.secagg.messages import (
    REPLIES,
    AdvertiseKeys,
    Advertisement,
    Agree,
    Agreement,
    CollectInput,
    DeliverShares,
    EncryptedShares,
    MaskedInput,
    ShareKeys,
    SharesDelivered,
    Unmask,
    Unmasking,
)
from dordis.protocols.secagg.state import Secrets
from dordis.simulation.exchange import Party

Answer = TypeVar("Answer", bound=Message)
Shares = dict[ClientId, dict[ClientId, bytes]]
"""By dealer, then by holder."""


@dataclass
class Trail:
    """How far an attack has come: the name of the last request."""

    stage: str = ""


def deliver(party: Party, request: Message, reply: type[Answer], trail: Trail) -> Answer:
    """Send one request to one party through the codec, and return its answer."""
    trail.stage = type(request).__name__
    received = wire.decode(wire.encode(request), type(request))
    return wire.decode(wire.encode(party.handle(received)), reply)


class Session:
    """One round, step by step."""

    def __init__(
        self,
        parameters: Parameters,
        trail: Trail,
        owner: Owner | None = None,
    ) -> None:
        self.parameters = parameters
        self.trail = trail
        self.inputs = {u: random_vector(parameters) for u in parameters.clients}
        self.honest = {u: honest_client(u, x, owner) for u, x in self.inputs.items()}
        self.parties: dict[ClientId, Party] = dict(self.honest)
        self.secrets: dict[ClientId, dict[int, Secrets]] = {}
        self.keys: dict[ClientId, Advertisement] = {}
        self.shares: dict[ClientId, EncryptedShares] = {}
        self.u2: tuple[ClientId, ...] = ()
        self.uploads: dict[int, dict[ClientId, MaskedInput]] = {}

    def ask(self, u: ClientId, request: Message) -> Any:
        """Send a request to one client and return its answer."""
        return deliver(self.parties[u], request, REPLIES[type(request)], self.trail)

    def advertise(
        self, who: Collection[ClientId] | None = None, shown: Mapping[ClientId, Parameters] | None = None
    ) -> None:
        """Stage 0; `shown` are other parameters for some."""
        for u in self.parameters.clients if who is None else who:
            self.keys[u] = self.ask(u, AdvertiseKeys((shown or {}).get(u, self.parameters)))
            self.secrets[u] = self.honest[u].state.secrets

    def broadcast(self) -> ShareKeys:
        """Return the request of stage 1."""
        return ShareKeys({int(u): keys for u, keys in sorted(self.keys.items())})

    def share(self, who: Collection[ClientId] | None = None) -> None:
        """Stage 1."""
        for u in self.keys if who is None else who:
            self.shares[u] = self.ask(u, self.broadcast())
        self.u2 = tuple(sorted(self.shares))

    def delivery(self, v: ClientId, u2: Collection[ClientId] | None = None) -> DeliverShares:
        """Return what a client is due at the end of stage 1, for this U2."""
        members = self.u2 if u2 is None else u2
        senders = sorted(self.parameters.neighbourhoods[v] & {*members} - {v})
        return DeliverShares(self.parameters.pack(members), {int(u): self.shares[u].ciphertexts[v] for u in senders})

    def open(self, who: Collection[ClientId] | None = None) -> dict[ClientId, SharesDelivered]:
        """End of stage 1."""
        return {v: self.ask(v, self.delivery(v)) for v in (self.u2 if who is None else who)}

    def set_up(self) -> None:
        """Do stages 0 and 1 as they should be."""
        self.advertise()
        self.share()
        self.open()

    def upload(self, who: Collection[ClientId] | None = None, chunk: int = 0) -> None:
        """Stage 2."""
        for u in self.u2 if who is None else who:
            self.uploads.setdefault(chunk, {})[u] = self.ask(u, CollectInput(chunk))

    def agreement(self, u3: Collection[ClientId], chunk: int = 0, forged: Collection[ClientId] = ()) -> Agree:
        """Return the request of stage 3, with invented tokens for some."""
        tokens = (bytes(32) if u in forged else self.uploads[chunk][u].token for u in sorted(u3))
        return Agree(chunk, self.parameters.pack(u3), b"".join(tokens))

    def agree(
        self, u3: Collection[ClientId], who: Collection[ClientId] | None = None, chunk: int = 0,
        forged: Collection[ClientId] = (),
    ) -> dict[int, bytes]:  # fmt: skip
        """Stage 3: return the signatures; in the semi-honest mode there are none."""
        if not self.parameters.is_malicious:
            return {}
        request = self.agreement(u3, chunk, forged)
        answers: dict[ClientId, Agreement] = {u: self.ask(u, request) for u in sorted(u3 if who is None else who)}
        return {int(u): answer.signature for u, answer in answers.items()}

    def unmask(
        self, u3: Collection[ClientId], signatures: Mapping[int, bytes], who: Collection[ClientId] | None = None,
        chunk: int = 0,
    ) -> dict[ClientId, Unmasking]:  # fmt: skip
        """Stage 4: return the answers."""
        request = Unmask(chunk, self.parameters.pack(u3), dict(sorted(signatures.items())))
        return {u: self.ask(u, request) for u in sorted(u3 if who is None else who)}

    def finish(
        self, u3: Collection[ClientId], chunk: int = 0, without: Collection[ClientId] = ()
    ) -> dict[ClientId, Unmasking]:
        """Do stages 3 and 4 with everyone in U3 but some."""
        asked = [u for u in u3 if u not in without]
        return self.unmask(u3, self.agree(u3, asked, chunk), asked, chunk)

    def disclosed(self, u3: Collection[ClientId], answers: Mapping[ClientId, Unmasking]) -> tuple[Shares, Shares]:
        """Sort the shares that were disclosed: of masking keys and of self-masks."""
        keys: Shares = {}
        masks: Shares = {}
        for v, answer in answers.items():
            held = sorted(self.parameters.neighbourhoods[v] & {*self.u2})
            lost, alive = [u for u in held if u not in u3], [u for u in held if u in u3]
            for target, dealers, data in ((keys, lost, answer.key_shares), (masks, alive, answer.mask_shares)):
                for u, share in zip(dealers, masking.split(data, sharing.SHARE_BYTES, len(dealers)), strict=True):
                    target.setdefault(u, {})[v] = share
        return keys, masks

    def rebuild(self, shares: Mapping[ClientId, bytes]) -> bytes:
        """Rebuild a secret from the shares of its holders."""
        points = [self.parameters.point(v) for v in shares]
        rows = np.stack([sharing.from_bytes(share) for share in shares.values()])
        return sharing.Interpolation(points, self.parameters.threshold).combine(rows)[0]

    def masking_key(self, u: ClientId, chunk: int = 0) -> bytes:
        """Return a public masking key."""
        return masking.split(self.keys[u].masking, masking.KEY_BYTES, len(self.parameters.chunks))[chunk]

    def stripped(
        self, u: ClientId, self_mask: bytes, private: bytes = b"", peers: Mapping[ClientId, bytes] | None = None,
        chunk: int = 0,
    ) -> Vector:  # fmt: skip
        """Take the masks off one upload: its self-mask, and those shared with peers, given their public keys."""
        y = self.vector(u, chunk)
        added: list[prg.Stream] = []
        subtracted = [masking.self_mask(DEFAULT, self.parameters, chunk, u, self_mask)]
        for v, public in (peers or {}).items():
            mask = masking.pair_mask(DEFAULT, self.parameters, chunk, (u, v), private, public)
            (subtracted if u < v else added).append(mask)
        prg.add_masks(y, added, subtracted, self.parameters.bits)
        return y

    def vector(self, u: ClientId, chunk: int = 0) -> Vector:
        """Return an upload as a vector."""
        span = self.parameters.chunks[chunk]
        return unpack(self.uploads[chunk][u].vector, self.parameters.bits, span.stop - span.start)

    def total(self, u3: Collection[ClientId], answers: Mapping[ClientId, Unmasking], chunk: int = 0) -> Vector:
        """Add up the uploads at hand of U3 and take off every mask that the answers allow; noise stays."""
        keys, masks = self.disclosed(u3, answers)
        uploaded = [u for u in sorted(u3) if u in self.uploads[chunk]]
        total: Vector = np.sum([self.vector(u, chunk) for u in uploaded], axis=0, dtype=np.uint32)
        recovery.remove_masks(
            DEFAULT,
            total,
            self.parameters,
            chunk,
            {u: self.rebuild(shares) for u, shares in keys.items()},
            {u: self.rebuild(masks[u]) for u in uploaded},
            {u: self.masking_key(u, chunk) for u in uploaded},
        )
        return total

    def subtract_noise(self, total: Vector, seeds: Collection[bytes], chunk: int = 0) -> Vector:
        """Take the noise of seeds of the first removable component off a sum."""
        for seed in seeds:
            add_noise(total, seed, self.parameters.plans[chunk].removable[0], subtract=True)
        return total & np.uint32(2**self.parameters.bits - 1)

    def lots(self, chunk: int = 0) -> list[ClientId]:
        """Return U in the public order in which removable noise is taken."""
        named = b"dordis/v1/removal" + context(self.parameters.round, chunk, self.parameters.digest)
        return sorted(self.parameters.clients, key=lambda u: hashlib.sha256(named + u.to_bytes(8, "big")).digest())

    def due(self, u3: Collection[ClientId], chunk: int = 0) -> set[ClientId]:
        """Return the members of U3 whose removable noise is due."""
        return {ClientId(u) for u, ks in self.parameters.due(chunk, u3).items() if ks}

    def truth(self, u: ClientId, chunk: int = 0, removed: bool = False) -> Vector:
        """Return an input with all its noise, or without the removable part: what only the examiner knows."""
        plan, own = self.parameters.plans[chunk], self.secrets[u][chunk]
        value = np.array(self.inputs[u][self.parameters.chunks[chunk]])
        seeds, variances = (
            (own.base, plan.base) if removed else ((*own.base, *own.removable), (*plan.base, *plan.removable))
        )
        for seed, variance in zip(seeds, variances, strict=True):
            add_noise(value, seed, variance)
        return value & np.uint32(2**self.parameters.bits - 1)

    def true_sum(self, u3: Collection[ClientId], removed: Collection[ClientId] = (), chunk: int = 0) -> Vector:
        """Return the sum over U3, some without their removable noise."""
        values = [self.truth(u, chunk, u in removed) for u in u3]
        total: Vector = np.sum(values, axis=0, dtype=np.uint32)
        return total & np.uint32(2**self.parameters.bits - 1)

    def sign(self, u: ClientId, statement: bytes) -> bytes:
        """Sign as a colluder would."""
        return signature.sign(keys_of(u).signing, statement)
