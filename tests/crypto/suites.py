"""Other suites for tests: one with another cipher, one in which nothing is as in the default, one that counts."""

import hashlib
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dordis.crypto import agreement, prg, sharing, signature
from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import DecryptionFailed


class ChaCha:
    """ChaCha20-Poly1305 instead of AES-256-GCM."""

    KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16

    @staticmethod
    def encrypt(key, nonce, plaintext, associated):
        return ChaCha20Poly1305(key).encrypt(nonce, plaintext, associated)

    @staticmethod
    def decrypt(key, nonce, ciphertext, associated):
        try:
            return ChaCha20Poly1305(key).decrypt(nonce, ciphertext, associated)
        except InvalidTag:
            raise DecryptionFailed("it does not open") from None


class Padded(ChaCha):
    """The same with another length of key and of ciphertexts."""

    KEY_BYTES, TAG_BYTES = 40, 19

    @staticmethod
    def encrypt(key, nonce, plaintext, associated):
        return b"pad" + ChaCha.encrypt(hashlib.sha256(key).digest(), nonce, plaintext, associated)

    @staticmethod
    def decrypt(key, nonce, ciphertext, associated):
        if ciphertext[:3] != b"pad":
            raise DecryptionFailed("it does not open")
        return ChaCha.decrypt(hashlib.sha256(key).digest(), nonce, ciphertext[3:], associated)


class LongerStream:
    """A keystream that is named by more bytes."""

    @staticmethod
    def from_bytes(derived):
        if len(derived) != 48:
            return prg.Stream.from_bytes(b"")  # refused
        return prg.Stream.from_bytes(hashlib.sha256(derived).digest()[: prg.STREAM_BYTES])


def like(module, **changes):
    """Return what a module has, some of it replaced."""
    names = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    return SimpleNamespace(**(names | changes))


CHACHA = replace(DEFAULT, cipher=ChaCha)
TWISTED = Suite(
    agreement=like(agreement, agree=lambda a, B: hashlib.sha256(agreement.agree(a, B)).digest()),
    cipher=Padded,
    sharing=like(
        sharing,
        SHARE_BYTES=sharing.SHARE_BYTES + 1,
        to_bytes=lambda shares: b"".join(sharing.to_bytes(share[None]) + b"#" for share in shares),
        from_bytes=lambda data, count: sharing.from_bytes(
            data if len(data) != count * 37 else b"".join(data[37 * i : 37 * i + 36] for i in range(count)), count
        ),
    ),
    prg=like(prg, STREAM_BYTES=48, Stream=LongerStream),
    signature=like(
        signature,
        sign=lambda private, message: signature.sign(private, b"twisted" + message),
        verify=lambda public, message, signed: signature.verify(public, b"twisted" + message, signed),
    ),
)
"""A use of a primitive that goes past this suite does not fit those that go through it."""


def counting() -> tuple[Suite, Counter]:
    """Return the default suite and how often each of its functions was called."""
    calls: Counter = Counter()

    def counted(name, function, *arguments, **options):
        calls[name] += 1
        return function(*arguments, **options)

    def watched(part):
        module = getattr(DEFAULT, part)
        functions = {
            name: partial(counted, f"{part}.{name}", value)
            for name, value in vars(module).items()
            if callable(value) and not name.startswith("_") and name != "Stream"
        }
        return like(module, **functions)

    return Suite(**{part: watched(part) for part in Suite.__dataclass_fields__}), calls
