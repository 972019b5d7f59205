"""Write masks.json with the slow reference: python -m tests.vectors.make_masks, from the root of the repository."""

import hashlib
import json
from pathlib import Path

from tests.references import masks

LAST_BYTE = (2**32 - 2) * 16  # the counter has 32 bits and starts at 2


def stream(name: str) -> masks.Stream:
    """Return a key and a nonce named by a hash."""
    digest = hashlib.sha256(f"mask {name}".encode()).digest()
    return digest[:16], digest[16:28]


def single(bits: int, first: int, count: int) -> dict[str, object]:
    """Return a part of one mask."""
    key, nonce = stream(f"{bits} {first}")
    answer = masks.mask((key, nonce), bits, first, count)
    return {"key": key.hex(), "nonce": nonce.hex(), "bits": bits, "first": first, "mask": answer}


def signed_sum(bits: int, added: int, subtracted: int, count: int) -> dict[str, object]:
    """Return a sum of masks, by its hash as little-endian words of four bytes."""
    streams = [stream(f"sum {bits} {i}") for i in range(added + subtracted)]
    total = masks.add_masks([0] * count, streams[:added], streams[added:], bits)
    digest = hashlib.sha256(b"".join(value.to_bytes(4, "little") for value in total)).hexdigest()
    derived = [(key + nonce).hex() for key, nonce in streams]
    return {
        "bits": bits,
        "added": derived[:added],
        "subtracted": derived[added:],
        "count": count,
        "last_8": total[-8:],
        "sha256": digest,
    }


if __name__ == "__main__":
    singles = [single(bits, first, 9) for bits in range(1, 33) for first in (0, 13, 2**18 - 4)]
    singles += [single(bits, LAST_BYTE // -(-bits // 8) - 9, 9) for bits in (8, 16, 20, 24, 32)]
    sums = [signed_sum(8, 1, 0, 270_000), signed_sum(16, 3, 2, 133_333), signed_sum(20, 2, 5, 90_001)]
    sums += [signed_sum(24, 5, 4, 87_377), signed_sum(32, 4, 4, 65_537)]
    parts = {"masks": singles, "sums": sums}
    lines = [f'"{name}": [\n' + ",\n".join("  " + json.dumps(each) for each in parts[name]) + "\n]" for name in parts]
    Path(__file__).with_name("masks.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
