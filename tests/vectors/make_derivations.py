"""Write derivations.json: known answers of every derivation, from the standard library alone.

Run it only with a new protocol version: within one, the answers never change.
"""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

SECRET = bytes(range(32))
PARAMETERS = hashlib.sha256(b"parameters").digest()
ROUND = bytes(range(16))
USES = [("mask", 0, 1, 2, 32), ("mask", 0, 2, 1, 32), ("share-key", 3, 70000, 1, 44), ("self", 12, 5, 5, 1)]


def hkdf(secret: bytes, info: bytes, length: int) -> bytes:
    """Extract without salt and expand, as RFC 5869 writes it."""
    key = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    block, stream = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.new(key, block + info + bytes([counter]), hashlib.sha256).digest()
        stream += block
    return stream[:length]


def commitment(label: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in (b"dordis/v1/commitment", label, PARAMETERS, SECRET):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def derivations() -> dict[str, Any]:
    """Return the whole content of the file."""
    cases = []
    for use, chunk, sender, receiver, length in USES:
        label = f"dordis/v1/{use}/{ROUND.hex()}/{chunk}/{sender}/{receiver}"
        derived = hkdf(SECRET, label.encode() + PARAMETERS, length)
        cases.append(
            {"use": use, "chunk": chunk, "sender": sender, "receiver": receiver, "label": label}
            | {"length": length, "derived": derived.hex(), "commitment": commitment(label.encode()).hex()}
        )
    infos = ["dordis/v1/noise/cells", "dordis/v1/noise/" + "x" * 60]
    expansions = [
        {"info": info, "length": length, "expanded": hkdf(SECRET, info.encode(), length).hex()}
        for info, length in zip(infos, [28, 100], strict=True)
    ]
    given = {"secret": SECRET.hex(), "parameter_hash": PARAMETERS.hex(), "round_id": ROUND.hex()}
    return given | {"derivations": cases, "expansions": expansions}


if __name__ == "__main__":
    text = json.dumps(derivations(), indent=2) + "\n"
    Path(__file__).with_name("derivations.json").write_text(text)
