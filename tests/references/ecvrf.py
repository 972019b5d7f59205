"""ECVRF-EDWARDS25519-SHA512-TAI (RFC 9381) on Python integers: affine, slow, not constant in time."""

from hashlib import sha512

Point = tuple[int, int]

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
IDENTITY: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    """Add two points by the complete affine law of -x^2 + y^2 = 1 + d x^2 y^2."""
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P


def negate(a: Point) -> Point:
    return -a[0] % P, a[1]


def multiply(n: int, a: Point) -> Point:
    total = IDENTITY
    while n:
        if n & 1:
            total = add(total, a)
        a, n = add(a, a), n >> 1
    return total


def encode(a: Point) -> bytes:
    return (a[1] | (a[0] & 1) << 255).to_bytes(32, "little")


def decode(data: bytes) -> Point | None:
    """Decode as in RFC 8032, 5.1.3: None for what is no point or not canonical."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square or (x == 0 and sign):
        return None
    return (x, y) if x & 1 == sign else (P - x, y)


BASE = decode(bytes([0x58]) + bytes([0x66]) * 31)
assert BASE is not None


def little(data: bytes) -> int:
    return int.from_bytes(data, "little")


def secret_scalar(private: bytes) -> int:
    return little(sha512(private).digest()[:32]) & (2**254 - 8) | 2**254


def public(private: bytes) -> bytes:
    return encode(multiply(secret_scalar(private), BASE))


def candidate(public_key: bytes, alpha: bytes) -> Point:
    """Return the first decodable candidate of try and increment, before the cofactor is cleared."""
    for counter in range(256):
        found = decode(sha512(b"\x03\x01" + public_key + alpha + bytes([counter, 0])).digest()[:32])
        if found is not None and multiply(8, found) != IDENTITY:
            return found
    raise AssertionError("no candidate")


def challenge(*points: bytes) -> bytes:
    return sha512(b"\x03\x02" + b"".join(points) + b"\x00").digest()[:16]


def prove(private: bytes, alpha: bytes) -> bytes:
    x, y = secret_scalar(private), public(private)
    h = multiply(8, candidate(y, alpha))
    gamma = encode(multiply(x, h))
    k = little(sha512(sha512(private).digest()[32:] + encode(h)).digest()) % Q
    c = challenge(y, encode(h), gamma, encode(multiply(k, BASE)), encode(multiply(k, h)))
    return gamma + c + ((k + little(c) * x) % Q).to_bytes(32, "little")


def verify(public_key: bytes, alpha: bytes, proof: bytes) -> bytes | None:
    """Return the output, or None where RFC 9381 says INVALID."""
    y, gamma, c, s = decode(public_key), decode(proof[:32]), proof[32:48], little(proof[48:])
    if y is None or multiply(8, y) == IDENTITY or gamma is None or s >= Q or len(proof) != 80:
        return None
    h = multiply(8, candidate(public_key, alpha))
    u = add(multiply(s, BASE), negate(multiply(little(c), y)))
    v = add(multiply(s, h), negate(multiply(little(c), gamma)))
    if challenge(public_key, encode(h), proof[:32], encode(u), encode(v)) != c:
        return None
    return sha512(b"\x03\x03" + encode(multiply(8, gamma)) + b"\x00").digest()


ORDER_EIGHT = decode(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"))
assert ORDER_EIGHT is not None


def torsion() -> list[Point]:
    """Return the seven points of order 2, 4 and 8."""
    points = [multiply(n, ORDER_EIGHT) for n in range(1, 8)]
    assert len({IDENTITY, *points}) == 8
    assert multiply(8, ORDER_EIGHT) == IDENTITY
    return points


def low_order_encodings() -> list[bytes]:
    """Return the eight points of low order in every encoding that a lax decoder might accept."""
    top = 1 << 255
    non_canonical = [1 | top, P - 1 | top, P, P | top, P + 1, P + 1 | top]
    return [encode(point) for point in [IDENTITY, *torsion()]] + [n.to_bytes(32, "little") for n in non_canonical]
