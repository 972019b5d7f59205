"""TLS with counts of bytes and fragments; floods are in test_server.py."""

import pytest

from dordis.network.metered_tls import FragmentCounter


@pytest.mark.parametrize("piece", [1, 3, 7, 10**6])
def test_short_fragments_are_counted_however_the_bytes_arrive(piece):
    counter, stream = FragmentCounter(), b""
    for size, fin, masked in [(0, 0, 1), (5, 0, 0), (70000, 0, 1), (300, 0, 1), (2000, 0, 1), (0, 1, 1), (300, 1, 0)]:
        length = (
            bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 65536 else b"\x7f" + size.to_bytes(8)
        )
        stream += bytes([fin << 7 | 2, length[0] | masked << 7]) + length[1:] + bytes(4 * masked + size)
    for start in range(0, len(stream), piece):
        counter.feed(stream[start : start + piece])
    assert counter.count == 3
