"""Write packing.json with the slow reference: python -m tests.vectors.make_packing, from the root of the repository."""

import hashlib
import json
from pathlib import Path

from tests.references import transforms


def element(index: int, bits: int) -> int:
    """Return the first `bits` bits of a hash of the position."""
    digest = hashlib.sha256(f"packing {bits} {index}".encode()).digest()
    return int.from_bytes(digest[:4], "little") & ((1 << bits) - 1)


def vector(bits: int, count: int) -> dict[str, object]:
    """Return one known answer."""
    values = [element(index, bits) for index in range(count)]
    return {"bits": bits, "values": values, "packed": transforms.pack(values, bits).hex()}


if __name__ == "__main__":
    vectors = [vector(bits, count) for bits in range(1, 33) for count in (1, 19)]
    lines = ",\n".join("  " + json.dumps(each) for each in vectors)
    Path(__file__).with_name("packing.json").write_text(f"[\n{lines}\n]\n")
