"""The statements that clients and helpers sign in assisted rounds; each has its own tag and names run and index."""

import hashlib
from collections.abc import Iterable

from dordis.protocols.assisted.messages import VERSION
from dordis.protocols.assisted.parameters import AssistedParameters, EpochKey
from dordis.protocols.parameters import RUN_BYTES


def header(encoded: bytes) -> bytes:
    """Return a client's statement: this header has the digests of my contribution."""
    return _statement(b"assisted-header", encoded)


def epoch_key(run: bytes, key: EpochKey) -> bytes:
    """Return a helper's statement: this is my only key for these rounds of the run."""
    numbers = (key.epoch, key.first, key.last, key.not_after)
    return _statement(b"assisted-epoch", run, *(number.to_bytes(8, "big") for number in numbers), key.key)


def survivors(parameters: AssistedParameters, headers: Iterable[bytes]) -> bytes:
    """Return a helper's statement: this is U3, given by the digests of its members' headers, by id."""
    digests = list(headers)
    run, index = parameters.round[:RUN_BYTES], parameters.round[RUN_BYTES:]
    count = len(digests).to_bytes(8, "big")
    return _statement(
        b"assisted-survivors", run, index, parameters.digest, count, hashlib.sha256(b"".join(digests)).digest()
    )


def _statement(tag: bytes, *parts: bytes) -> bytes:
    everything = (b"dordis/v1/statement/" + tag, VERSION.to_bytes(8, "big"), *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in everything)
