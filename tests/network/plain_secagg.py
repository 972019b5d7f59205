"""A client of SecAgg in plain Python, written from docs/wire.md; it imports nothing of dordis.

It checks little of what a server says: it shows that the page suffices to answer.
"""

import hashlib
import secrets
import struct
from fractions import Fraction
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.network.plain_encoding import Fields, encode_frame
from tests.references import cell_noise, shamir

SHARE, HASH, KEY = 36, 16, 32


def be8(number: int) -> bytes:
    return number.to_bytes(8, "big")


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def lengths(*parts: bytes) -> bytes:
    """Return LEN of every part."""
    return b"".join(be8(len(part)) + part for part in parts)


def hkdf(secret: bytes, info: bytes, count: int) -> bytes:
    return HKDF(hashes.SHA256(), count, None, info).derive(secret)


def keystream(derived: bytes, count: int) -> bytes:
    cipher = Cipher(algorithms.AES128(derived[:16]), modes.CTR(derived[16:] + struct.pack(">I", 2))).encryptor()
    return cipher.update(bytes(count))


def mask(derived: bytes, count: int, bits: int) -> np.ndarray:
    width = -(-bits // 8)
    lanes = np.zeros((count, 8), np.uint8)
    lanes[:, :width] = np.frombuffer(keystream(derived, count * width), np.uint8).reshape(count, width)
    return lanes.view("<u8").ravel().astype(np.int64)


def pack_bits(values: np.ndarray, bits: int) -> bytes:
    stream = (values[:, None] >> np.arange(bits)) & 1
    return np.packbits(stream.astype(np.uint8).ravel(), bitorder="little").tobytes()


def words(data: bytes) -> list[int]:
    return np.frombuffer(data, "<u8").tolist()


class Agreed:
    """The parameters of a round, for one client, and what follows from them."""

    def __init__(self, me: int, signing: bytes, given: Fields) -> None:
        self.me, self._signing, self.given = me, signing, given
        self.hash = sha(b"dordis/v1/parameters", encode_frame(given))
        self._n, self._tolerance = given["n_max"], given["n_max"] - given["n_min"]
        ends = words(given["ends"])
        self.chunks = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self.components = [self._variances(Fraction(given["variances"][c])) for c in range(len(ends))]
        tables = b"".join(cell_noise.table(v).digest() for base, removable in self.components for v in base + removable)
        assert given["tables"] == sha(b"dordis/v1/tables", tables)

    def _variances(self, sigma: Fraction) -> tuple[list[Fraction], list[Fraction]]:
        n, T, T_C, c = self._n, self._tolerance, self.given["colluders"], self.given["fraction"]
        s = sigma * (n - T) / (n - T - T_C)
        match self.given["scheme"]:
            case "none":
                return [], []
            case "single" if T:
                unit = up(s / ((n - T) * c))
                return [(c - 1) * unit] * (c > 1), [unit]
            case "single":
                return [up(s / n)], []
            case "orig":
                return [up(sigma / (n - T_C))], []
            case "exact":
                return [up(s / n)], [up(s / ((n - k + 1) * (n - k))) for k in range(1, T + 1)]
        raise NotImplementedError

    def label(self, use: str, chunk: int, sender: int, receiver: int) -> bytes:
        return f"dordis/v1/{use}/{self.given['round'].hex()}/{chunk}/{sender}/{receiver}".encode()

    def derive(self, secret: bytes, label: bytes, count: int) -> bytes:
        return hkdf(secret, label + self.hash, count)

    def commit(self, label: bytes, secret: bytes) -> bytes:
        return sha(lengths(b"dordis/v1/commitment", label, self.hash, secret))

    def noise(self, chunk: int, seeds: list[bytes]) -> np.ndarray:
        """Return the sum of all components of a chunk, the base first."""
        (base, removable), span = self.components[chunk], self.chunks[chunk]
        total = np.zeros(span.stop - span.start, np.int64)
        for seed, variance in zip(seeds, base + removable, strict=True):
            total += np.array(cell_noise.samples(seed, variance, 0, len(total)))
        return total


class Round(Agreed):
    """One round: the parameters, and all secrets of this client."""

    def __init__(self, me: int, signing: bytes, registry: dict[int, bytes], update: np.ndarray, given: Fields) -> None:
        super().__init__(me, signing, given)
        self._registry, self.members = registry, words(given["members"])
        self.signs = given["mode"] == "malicious"
        self._input = encode_update(update, given)
        self._channel = X25519PrivateKey.generate()
        self._secrets = [self._draw(len(base), len(removable)) for base, removable in self.components]

    def _draw(self, base: int, removable: int) -> Fields:
        drawn = {name: secrets.token_bytes(KEY) for name in ("masking", "mask", "token")}
        return drawn | {
            "base": [secrets.token_bytes(KEY) for _ in range(base)],
            "removable": [secrets.token_bytes(KEY) for _ in range(removable)],
        }

    def statement(self, tag: str, *parts: bytes) -> bytes:
        return lengths(f"dordis/v1/statement/{tag}".encode(), self.given["round"], self.hash, *parts)

    def sign(self, statement: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self._signing).sign(statement) if self.signs else b""

    def verify(self, client: int, statement: bytes, signature: bytes) -> None:
        Ed25519PublicKey.from_public_bytes(self._registry[client]).verify(signature, statement)

    def bitmap(self, clients: Any) -> bytes:
        return sum(1 << self.members.index(u) for u in clients).to_bytes(-(-self._n // 8), "little")

    def subset(self, bitmap: bytes) -> list[int]:
        bits = int.from_bytes(bitmap, "little")
        return [u for i, u in enumerate(self.members) if bits >> i & 1]

    def due(self, chunk: int, survivors: list[int]) -> dict[int, list[int]]:
        """Return the numbers of the removable seeds that each member of U3 discloses."""
        dropped = self._n - len(survivors)
        if self.given["scheme"] == "exact":
            return {u: list(range(dropped, self._tolerance)) for u in survivors}
        first = b"dordis/v1/removal" + be8(40) + self.given["round"] + be8(chunk) + self.hash
        order = sorted(survivors, key=lambda u: sha(first, be8(u)))
        chosen = order[: self.given["fraction"] * (self._tolerance - dropped)] if self.components[chunk][1] else []
        return {u: [0] if u in chosen else [] for u in survivors}

    # Stages

    def advertise(self) -> Fields:
        masking = (public(X25519PrivateKey.from_private_bytes(own["masking"])) for own in self._secrets)
        tokens = (
            self.commit(self.label("token", chunk, self.me, self.me), own["token"])
            for chunk, own in enumerate(self._secrets)
        )
        fields = [public(self._channel), b"".join(masking), b"".join(tokens)]
        signature = self.sign(self.statement("keys", be8(self.me), *fields))
        self._own = dict(zip(("type", "channel", "masking", "tokens"), ("Advertisement", *fields), strict=True))
        self._own |= {"signature": signature}
        return self._own

    def share(self, request: Fields) -> Fields:
        self._peers = peers = request["advertisements"]
        assert peers[self.me] == self._own
        for u, shown in peers.items():
            if self.signs:
                parts = be8(u), shown["channel"], shown["masking"], shown["tokens"]
                self.verify(u, self.statement("keys", *parts), shown["signature"])
        shared = [s for own in self._secrets for s in (own["masking"], own["mask"], *own["removable"])]
        points = [1 + self.members.index(u) for u in peers]
        split = shamir.split(shared, points, self.given["threshold"], secrets.token_bytes)
        shares = {u: b"".join(struct.pack("<9I", *share) for share in one) for u, one in zip(peers, split, strict=True)}
        self._held = {self.me: shares[self.me]}
        ciphertexts = {
            v: self._cipher(self.me, v, "encrypt", shares[v]) + self._hashes(self.me, v, shares[v])
            for v in peers
            if v != self.me
        }
        commitments = b"".join(self._commitments(chunk, own) for chunk, own in enumerate(self._secrets))
        hashed = self._hashes(self.me, self.me, shares[self.me])
        sent = sha(*(be8(v) + sha(ciphertext) for v, ciphertext in sorted(ciphertexts.items())))
        signature = self.sign(self.statement("shares", be8(self.me), commitments, sent, hashed))
        reply = {"type": "EncryptedShares", "ciphertexts": ciphertexts, "commitments": commitments}
        return reply | {"hashes": hashed, "signature": signature}

    def _commitments(self, chunk: int, own: Fields) -> bytes:
        first = self.commit(self.label("commit-self-mask", chunk, self.me, 0), own["mask"])
        return first + b"".join(
            self.commit(self.label("commit-noise", chunk, self.me, k), seed) for k, seed in enumerate(own["removable"])
        )

    def _hashes(self, dealer: int, holder: int, shares: bytes) -> bytes:
        first, hashed = b"dordis/v1/share" + self.given["round"] + self.hash, b""
        places = [(c, place) for c, (_, more) in enumerate(self.components) for place in range(2 + len(more))]
        for i, (chunk, place) in enumerate(places):
            numbers = be8(chunk) + be8(dealer) + be8(holder) + be8(place)
            hashed += sha(first, numbers, shares[SHARE * i : SHARE * (i + 1)])[:HASH]
        return hashed

    def _cipher(self, sender: int, receiver: int, act: str, data: bytes) -> bytes:
        peer = receiver if sender == self.me else sender
        label = self.label("shares", 0, sender, receiver)
        agreed = self._channel.exchange(X25519PublicKey.from_public_bytes(self._peers[peer]["channel"]))
        derived = self.derive(agreed, label, 44)
        bound = label + self.hash + self._peers[sender]["channel"] + self._peers[receiver]["channel"]
        return getattr(AESGCM(derived[:32]), act)(derived[32:], data, bound)

    def deliver(self, request: Fields) -> Fields:
        self._u2 = self.subset(request["members"])
        size = HASH * len(self._held[self.me]) // SHARE
        for u, sent in request["ciphertexts"].items():
            self._held[u] = self._cipher(u, self.me, "decrypt", sent[:-size])
            assert self._hashes(u, self.me, self._held[u]) == sent[-size:]
        return {"type": "SharesDelivered", "accused": self.bitmap([])}

    def vector(self, chunk: int) -> bytes:
        """Return the masked input of a chunk, packed."""
        own, span, bits = self._secrets[chunk], self.chunks[chunk], self.given["bits"]
        count = span.stop - span.start
        y = self._input[span] + self.noise(chunk, own["base"] + own["removable"])
        y += mask(self.derive(own["mask"], self.label("self-mask", chunk, self.me, self.me), 28), count, bits)
        private = X25519PrivateKey.from_private_bytes(own["masking"])
        for v in self._u2:
            if v != self.me:
                key = self._peers[v]["masking"][KEY * chunk : KEY * (chunk + 1)]
                label = self.label("pair-mask", chunk, min(self.me, v), max(self.me, v))
                agreed = private.exchange(X25519PublicKey.from_public_bytes(key))
                y += (1 if self.me < v else -1) * mask(self.derive(agreed, label, 28), count, bits)
        return pack_bits(y % 2**bits, bits)

    def upload(self, chunk: int) -> Fields:
        return {"type": "MaskedInput", "chunk": chunk, "vector": b"", "token": self._secrets[chunk]["token"]}

    def agree(self, request: Fields) -> Fields:
        chunk, u3 = request["chunk"], self.subset(request["survivors"])
        for i, u in enumerate(u3):
            token = request["tokens"][KEY * i : KEY * (i + 1)]
            shown = self._peers[u]["tokens"][KEY * chunk : KEY * (chunk + 1)]
            assert self.commit(self.label("token", chunk, u, u), token) == shown
        signature = self.sign(self.statement("survivors", be8(chunk), request["survivors"]))
        return {"type": "Agreement", "chunk": chunk, "signature": signature}

    def unmask(self, request: Fields) -> Fields:
        chunk, u3 = request["chunk"], self.subset(request["survivors"])
        assert self.me in u3
        assert len(u3) >= self.given["n_min"]
        for u, signature in request["signatures"].items():
            self.verify(u, self.statement("survivors", be8(chunk), request["survivors"]), signature)
        assert len(request["signatures"]) >= self.given["quorum"] * self.signs
        self._u3 = getattr(self, "_u3", {}) | {chunk: u3}
        seeds = self._secrets[chunk]["removable"]
        return {
            "type": "Unmasking",
            "chunk": chunk,
            "key_shares": b"".join(self._share(u, chunk, 0) for u in self._u2 if u not in u3),
            "mask_shares": b"".join(self._share(u, chunk, 1) for u in u3),
            "seeds": {k: seeds[k] for k in self.due(chunk, u3)[self.me]},
        }

    def remove(self, request: Fields) -> Fields:
        chunk = request["chunk"]
        due = self.due(chunk, self._u3[chunk])
        shares = (self._share(u, chunk, 2 + k) for u in self.subset(request["owing"]) for k in due[u])
        return {"type": "NoiseShares", "chunk": chunk, "shares": b"".join(shares)}

    def _share(self, dealer: int, chunk: int, place: int) -> bytes:
        before = sum(2 + len(removable) for _, removable in self.components[:chunk])
        return self._held[dealer][SHARE * (before + place) : SHARE * (before + place + 1)]


def public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def up(variance: Fraction) -> Fraction:
    return Fraction(-(-variance * 2**20 // 1), 2**20)


def encode_update(update: np.ndarray, given: Fields) -> np.ndarray:
    """Clip, deal, rotate, scale and round."""
    encoding = given["encoding"]
    block, clip, bound = encoding["block"], encoding["clip"], encoding["sensitivity"]
    assert not {"projection", "records", "further"} & encoding.keys()
    assert not encoding["bit"]
    norm, blocks = float(np.linalg.norm(update)), -(-len(update) // block)
    clip, bound = clip or norm, bound or np.inf  # 0: without
    x = np.zeros(blocks * block)
    places = np.arange(len(update))
    x[places % blocks * block + places // blocks] = update * min(1.0, clip / norm)
    octets = np.frombuffer(keystream(hkdf(encoding["rotation"], b"dordis/v1/rotation", 28), -(-len(x) // 8)), np.uint8)
    x *= 1 - 2.0 * np.unpackbits(octets, bitorder="little")[: len(x)]
    half = 1
    while half < block:  # Sylvester's order: H of twice the size is ((H, H), (H, -H))
        low, high = x.reshape(-1, 2, half)[:, 0].copy(), x.reshape(-1, 2, half)[:, 1].copy()
        x = np.stack([low + high, low - high], axis=1).ravel()
        half *= 2
    x *= encoding["scale"] / np.sqrt(block)
    while True:
        fractions = np.frombuffer(secrets.token_bytes(4 * len(x)), "<u4") / 2**32
        rounded = (np.floor(x) + (fractions < x - np.floor(x))).astype(np.int64)
        if int(rounded @ rounded) <= bound:
            return rounded
