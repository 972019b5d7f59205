"""Keystreams and masks as their definition reads: one AES block, one lane, one integer at a time."""

from collections.abc import Sequence

from Crypto.Cipher import AES

Stream = tuple[bytes, bytes]  # key, nonce


def keystream(stream: Stream, first: int, count: int) -> bytes:
    """Return bytes first .. first + count - 1; block m is AES-128(key, nonce || BE32(2 + m))."""
    key, nonce = stream
    cipher = AES.new(key, AES.MODE_ECB)
    whole = b""
    if count:
        blocks = range(first // 16, (first + count - 1) // 16 + 1)
        whole = b"".join(cipher.encrypt(nonce + (2 + m).to_bytes(4, "big")) for m in blocks)
    return whole[first % 16 : first % 16 + count]


def mask(stream: Stream, bits: int, first: int, count: int) -> list[int]:
    """Return coordinates first .. first + count - 1: little-endian lanes of ceil(bits / 8) bytes, modulo 2^bits."""
    width = -(-bits // 8)
    data = keystream(stream, first * width, count * width)
    return [int.from_bytes(data[i * width : (i + 1) * width], "little") % 2**bits for i in range(count)]


def add_masks(
    values: Sequence[int], added: Sequence[Stream], subtracted: Sequence[Stream], bits: int, first: int = 0
) -> list[int]:
    """Return the values plus some masks minus others, modulo 2^bits."""
    sums = list(values)
    for sign, streams in ((1, added), (-1, subtracted)):
        for stream in streams:
            terms = mask(stream, bits, first, len(sums))
            sums = [total + sign * term for total, term in zip(sums, terms, strict=True)]
    return [total % 2**bits for total in sums]
