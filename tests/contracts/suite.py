"""What every suite of primitives keeps to: inherit `SuiteContract`, say which suite and how to make a signing key."""

import hashlib
import itertools

import numpy as np
import pytest

from dordis.crypto import kdf
from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import CryptoError, DecryptionFailed, DordisError, InputError, InvalidSignature, SharingError

POINTS = (1, 2, 5, 9, 30, 31, 77)
THRESHOLD = 3


def entropy(tag=0):
    """Return a source of bytes that are the same in every run, and different for every tag and call."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(b"%d/%d" % (tag, next(calls))).digest(size)


def flipped(data, place=0):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


class SuiteContract:
    """Tests of any suite."""

    suite: Suite = DEFAULT

    def signing_keys(self, tag):
        """Return a private and a public signing key."""
        private = entropy(tag)(32)
        return private, self.suite.signature.public_key(private)

    def test_it_is_a_value(self):
        assert self.suite == Suite(*(getattr(self.suite, name) for name in Suite.__dataclass_fields__))
        with pytest.raises(AttributeError):
            self.suite.cipher = self.suite.cipher

    # Agreement

    def key_pair(self, tag):
        private = self.suite.agreement.generate(entropy(tag))
        return private, self.suite.agreement.public_key(private)

    def test_keys_have_32_bytes_and_come_from_the_entropy_alone(self):
        assert self.key_pair(1) == self.key_pair(1) != self.key_pair(2)
        assert {len(key) for key in self.key_pair(1)} == {32}

    def test_two_parties_agree_and_a_third_does_not(self):
        (a, A), (b, B), (_, C) = map(self.key_pair, (1, 2, 3))
        shared = self.suite.agreement.agree(a, B)
        assert shared == self.suite.agreement.agree(b, A)
        assert shared != self.suite.agreement.agree(a, C)
        kdf.derive(shared, b"a label", bytes(32))  # takes 32 bytes

    def test_honest_public_keys_are_valid_and_malformed_ones_are_not(self):
        for tag in range(20):
            self.suite.agreement.validate(self.key_pair(tag)[1])
        good = self.key_pair(1)[1]
        for bad in (b"", good[:-1], good + b"\0"):
            with pytest.raises(CryptoError):
                self.suite.agreement.validate(bad)

    # Cipher

    @pytest.fixture
    def sealed(self):
        cipher = self.suite.cipher
        key, nonce = entropy(1)(cipher.KEY_BYTES), entropy(2)(cipher.NONCE_BYTES)
        return key, nonce, cipher.encrypt(key, nonce, b"thirty-six bytes of a share, or so", b"round 7")

    @pytest.mark.parametrize("size", [0, 1, 36, 5000])
    def test_what_is_encrypted_is_decrypted_and_longer_by_the_tag(self, sealed, size):
        key, nonce, _ = sealed
        plaintext = entropy(3)(size)
        ciphertext = self.suite.cipher.encrypt(key, nonce, plaintext, b"bound")
        assert len(ciphertext) == size + self.suite.cipher.TAG_BYTES
        assert self.suite.cipher.decrypt(key, nonce, ciphertext, b"bound") == plaintext

    def test_nothing_that_was_altered_is_decrypted(self, sealed):
        key, nonce, ciphertext = sealed
        decrypt = self.suite.cipher.decrypt
        altered = [flipped(ciphertext, place) for place in range(len(ciphertext))]
        for bad in (*altered, ciphertext[:-1], ciphertext + b"\0", b"", ciphertext[: self.suite.cipher.TAG_BYTES]):
            with pytest.raises(DecryptionFailed):
                decrypt(key, nonce, bad, b"round 7")
        for others in ((flipped(key), nonce, b"round 7"), (key, flipped(nonce), b"round 7"), (key, nonce, b"round 8")):
            with pytest.raises(DecryptionFailed):
                decrypt(*others[:2], ciphertext, others[2])

    # Sharing

    @pytest.fixture
    def secrets(self):
        return [entropy(tag)(32) for tag in range(4)] + [bytes(32), b"\xff" * 32]

    @pytest.fixture
    def shares(self, secrets):
        return self.suite.sharing.split(secrets, POINTS, THRESHOLD, entropy(9))

    def recovered(self, shares, places):
        points = [POINTS[i] for i in places]
        return self.suite.sharing.Interpolation(points, THRESHOLD).combine(shares[list(places)])

    def test_shares_have_the_shape_and_the_length_that_are_announced(self, secrets, shares):
        sharing = self.suite.sharing
        assert shares.dtype == np.uint32
        assert shares.shape == (len(POINTS), len(secrets), sharing.LIMBS)
        data = sharing.to_bytes(shares[0])
        assert len(data) == len(secrets) * sharing.SHARE_BYTES
        assert np.array_equal(sharing.from_bytes(data, len(secrets)), shares[0])
        assert sharing.to_bytes(shares[0][:1]) == data[: sharing.SHARE_BYTES]
        assert sharing.from_bytes(b"", 0).shape == (0, sharing.LIMBS)

    def test_shares_of_the_wrong_length_are_refused(self, shares):
        data = self.suite.sharing.to_bytes(shares[0])
        for bad in (data[:-1], data + b"\0", b""):
            with pytest.raises(SharingError):
                self.suite.sharing.from_bytes(bad, shares.shape[1])

    @pytest.mark.parametrize("places", [(0, 1, 2), (6, 3, 0), (5, 4, 3, 2), range(7)])
    def test_any_threshold_of_them_gives_the_secrets(self, secrets, shares, places):
        assert self.recovered(shares, places) == tuple(secrets)

    def test_fewer_give_nothing(self, shares):
        with pytest.raises(SharingError):
            self.recovered(shares, (0, 1))

    def test_sharing_is_random_and_the_secret_is_not_in_it(self, secrets):
        one, other = (self.suite.sharing.split(secrets, POINTS, THRESHOLD, entropy(tag)) for tag in (1, 2))
        assert (one != other).any(axis=2).all()
        assert secrets[0] not in self.suite.sharing.to_bytes(one[:, 0])

    # Masks

    def stream(self, tag):
        return self.suite.prg.Stream.from_bytes(entropy(tag)(self.suite.prg.STREAM_BYTES))

    def mask(self, tag, bits, size=1000):
        acc = np.zeros(size, np.uint32)
        self.suite.prg.add_masks(acc, [self.stream(tag)], [], bits)
        return acc

    @pytest.mark.parametrize("bits", [1, 8, 13, 16, 20, 24, 32])
    def test_masks_cancel_and_stay_in_the_ring(self, bits):
        x = np.random.default_rng(1).integers(0, 2**bits, 1000, dtype=np.uint32)
        y = np.array(x)
        self.suite.prg.add_masks(y, [self.stream(1), self.stream(2)], [self.stream(3)], bits)
        assert y.max() < 2**bits
        assert (y != x).mean() > 0.4
        expected = x + self.mask(1, bits) + self.mask(2, bits) - self.mask(3, bits)
        assert np.array_equal(y, expected & np.uint32(2**bits - 1))
        self.suite.prg.add_masks(y, [self.stream(3)], [self.stream(2), self.stream(1)], bits)
        assert np.array_equal(y, x)

    @pytest.mark.parametrize("first", [1, 16, 500, 999])
    def test_a_slice_of_masks_is_that_part_of_the_whole(self, first):
        for bits in (13, 20, 32):
            acc = np.zeros(1000 - first, np.uint32)
            self.suite.prg.add_masks(acc, [self.stream(1)], [], bits, first=first)
            assert np.array_equal(acc, self.mask(1, bits)[first:])

    def test_a_mask_depends_on_all_that_names_it_and_on_nothing_else(self):
        derived = entropy(1)(self.suite.prg.STREAM_BYTES)
        masks = {self.mask(1, 20).tobytes()}
        assert self.mask(1, 20).tobytes() in masks
        for place in range(len(derived)):
            acc = np.zeros(1000, np.uint32)
            self.suite.prg.add_masks(acc, [self.suite.prg.Stream.from_bytes(flipped(derived, place))], [], 20)
            masks.add(acc.tobytes())
        assert len(masks) == 1 + len(derived)

    def test_a_mask_is_uniform_in_every_bit(self):
        mask = self.mask(5, 20, 40_000)
        ones = [((mask >> np.uint32(bit)) & 1).mean() for bit in range(20)]
        assert max(abs(share - 0.5) for share in ones) < 5 * 0.5 / 200

    def test_a_stream_of_another_length_is_refused(self):
        for size in (0, self.suite.prg.STREAM_BYTES - 1, self.suite.prg.STREAM_BYTES + 1):
            with pytest.raises(InputError):
                self.suite.prg.Stream.from_bytes(bytes(size))

    # Signatures

    def test_a_signature_verifies_for_its_key_and_message_only(self):
        (private, public), (_, other) = self.signing_keys(1), self.signing_keys(2)
        signature = self.suite.signature
        signed = signature.sign(private, b"U3 is this")
        signature.verify(public, b"U3 is this", signed)
        for wrong in ((other, b"U3 is this", signed), (public, b"U3 is that", signed)):
            with pytest.raises(InvalidSignature):
                signature.verify(*wrong)
        for bad in (b"", signed[:-1], flipped(signed), flipped(signed, len(signed) - 1)):
            with pytest.raises(DordisError):
                signature.verify(public, b"U3 is this", bad)
