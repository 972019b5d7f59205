"""Statements of assisted rounds: no two kinds have the same bytes, and each names its run and index."""

import msgspec

from dordis.protocols.assisted import statements
from dordis.protocols.assisted.parameters import EpochKey
from tests.protocols.assisted.parties import RUN, Round


def test_statements_differ_in_everything_that_they_state():
    round = Round()
    parameters, key = round.parameters, EpochKey(3, 3, 3, 10, bytes(32), b"")
    changed = [msgspec.structs.replace(key, **{name: 4}) for name in ("epoch", "first", "last", "not_after")]
    other = [parameters, round.agree(n_min=6), round.agree(index=4), round.agree(run=bytes([1]) * 32)]
    said = [
        statements.header(b"header"),
        statements.header(b"another"),
        *(statements.epoch_key(RUN, one) for one in (key, *changed, msgspec.structs.replace(key, key=bytes([1]) * 32))),
        statements.epoch_key(bytes([1]) * 32, key),
        *(statements.survivors(which, [bytes(32)]) for which in other),
        statements.survivors(parameters, [bytes(32), bytes(32)]),
    ]
    assert len(set(said)) == len(said)
    assert all(one.startswith((34).to_bytes(8, "big") + b"dordis/v1/statement/assisted-") for one in said[2:9])
