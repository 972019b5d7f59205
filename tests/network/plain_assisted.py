"""A client of assisted rounds in plain Python, written from docs/wire.md; it imports nothing of dordis."""

import hashlib
import secrets
from functools import reduce
from itertools import combinations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.network.plain_encoding import Fields, pack
from tests.network.plain_secagg import KEY, Agreed, be8, lengths, mask, pack_bits, public


class Contribution(Agreed):
    """The one message of a client, and the secrets in it."""

    def __init__(self, me: int, signing: bytes, given: Fields) -> None:
        super().__init__(me, signing, given)
        helpers = sorted(given["helpers"])
        self.sets = list(combinations(helpers, len(helpers) - given["faulty"]))
        self.seeds = [secrets.token_bytes(KEY) for _ in self.sets]
        self.private = [[secrets.token_bytes(KEY) for _ in base] for base, _ in self.components]
        self.removable = [
            [self._joined(chunk, j) for j in range(len(removable))]
            for chunk, (_, removable) in enumerate(self.components)
        ]

    def _joined(self, chunk: int, j: int) -> bytes:
        pieces = (
            self.derive(seed, self.label("assisted-piece", chunk, self.me, rank) + f"/{j}".encode(), KEY)
            for rank, seed in enumerate(self.seeds)
        )
        return bytes(reduce(np.bitwise_xor, (np.frombuffer(piece, np.uint8) for piece in pieces)))

    def vector(self, encoded: np.ndarray) -> bytes:
        """Return the encoded update with noise and masks, packed."""
        bits = self.given["bits"]
        noise = [self.noise(c, self.private[c] + self.removable[c]) for c in range(len(self.chunks))]
        y = encoded + np.concatenate(noise)
        for rank, seed in enumerate(self.seeds):
            y += mask(self.derive(seed, self.label("assisted-mask", 0, self.me, rank), 28), len(y), bits)
        return pack_bits(y % 2**bits, bits)

    def _boxes(self, own: X25519PrivateKey) -> list[bytes]:
        boxes = []
        for helper, key in self.given["helpers"].items():
            if key is None:
                continue
            theirs = key[4]
            label = self.label("assisted-box", 0, self.me, helper) + public(own) + theirs
            derived = self.derive(own.exchange(X25519PublicKey.from_public_bytes(theirs)), label, 44)
            seeds = b"".join(seed for seed, members in zip(self.seeds, self.sets, strict=True) if helper in members)
            boxes.append(AESGCM(derived[:32]).encrypt(derived[32:], seeds, public(own)))
        return boxes

    def message(self, vector: bytes) -> Fields:
        """Return the frame's content of the contribution of a packed vector."""
        own = X25519PrivateKey.generate()
        boxes = self._boxes(own)
        commitments = (
            self.commit(self.label("assisted-seed", 0, self.me, rank), seed) for rank, seed in enumerate(self.seeds)
        )
        header = pack(
            [
                1,
                self.given["round"],
                self.hash,
                self.me,
                public(own),
                b"".join(hashlib.sha256(box).digest() for box in boxes),
                b"".join(commitments),
                hashlib.sha256(vector).digest(),
                len(vector),
                b"",
            ]
        )
        statement = lengths(b"dordis/v1/statement/assisted-header", be8(1), header)
        signature = Ed25519PrivateKey.from_private_bytes(self._signing).sign(statement)
        fields = {"header": header, "signature": signature, "boxes": b"".join(boxes), "vector": b""}
        return {"type": "SignedContribution", **fields}
