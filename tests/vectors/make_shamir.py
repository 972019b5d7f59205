"""Write shamir.json with the slow reference alone: python -m tests.vectors.make_shamir."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

from tests.references import shamir

# The entropy of the first case starts with both byte patterns that are rejected.
CASES = [
    {"name": "rejection", "secrets": 1, "points": [1, 2, 3], "threshold": 2, "prefix": "ffffff7fffffffff"},
    {"name": "everyone", "secrets": 2, "points": [1, 2, 3, 4], "threshold": 4, "prefix": ""},
    {"name": "replicated", "secrets": 1, "points": [9, 2147483646], "threshold": 1, "prefix": ""},
    {"name": "unsorted", "secrets": 3, "points": [7, 2, 1000, 5, 65536], "threshold": 3, "prefix": ""},
]


def vector(case: dict[str, Any]) -> dict[str, Any]:
    """Share secrets that are hashes of the case's name."""
    secrets = [hashlib.sha256(f"{case['name']} {i}".encode()).digest() for i in range(case["secrets"])]
    secrets[0] = b"\xff" * 32
    drawn = 4 * 9 * (case["threshold"] - 1) * len(secrets)
    entropy = bytes.fromhex(case["prefix"]) + hashlib.shake_256(case["name"].encode()).digest(drawn)
    shares = shamir.split(secrets, case["points"], case["threshold"], io.BytesIO(entropy).read)
    return {
        "name": case["name"],
        "threshold": case["threshold"],
        "points": case["points"],
        "secrets": [secret.hex() for secret in secrets],
        "entropy": entropy.hex(),
        "shares": [b"".join(limb.to_bytes(4, "little") for share in row for limb in share).hex() for row in shares],
    }


if __name__ == "__main__":
    Path(__file__).with_name("shamir.json").write_text(json.dumps([vector(case) for case in CASES], indent=1) + "\n")
