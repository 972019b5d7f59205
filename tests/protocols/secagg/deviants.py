"""Clients that deviate in a SecAgg round of seven, and the checks on its outcome."""

import msgspec
import numpy as np

from dordis.crypto.sharing import SHARE_BYTES
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.secagg import SecAggClient
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    CollectInput,
    DeliverShares,
    RemoveNoise,
    ShareKeys,
    Unmask,
)
from tests.protocols.rounds import Round, random_inputs

IDS = (3, 5, 8, 13, 21, 34, 55)
LIAR, OTHER, THIRD, LAST = 13, 5, 34, 55
P = agree_on(
    run=bytes(32), index=9, clients=IDS, threshold=3, tolerance=3, bits=13, ends=[5, 11],
    scheme=Scheme.SINGLE, variances=[50, 70],
)  # fmt: skip
DUE = [u for u, ks in P.due(0, IDS).items() if ks]
OWING = next(u for u in DUE if u not in (LIAR, OTHER, THIRD))
"""A client whose seed is due in chunk 0 if all upload: lost at Unmask, it makes stage 5 take place."""
STAGE_5 = ((OWING, "Unmask", 0),)


class Deviant:
    """A client that answers honestly, except that `lie` alters its replies to one kind of request."""

    def __init__(self, client, kind, lie):
        self.client = client
        self._kind, self._lie = kind, lie

    @property
    def state(self):
        return self.client.state

    def handle(self, request):
        reply = self.client.handle(request)
        return self._lie(reply) if type(request) is self._kind else reply


def change(**fields):
    """Return a lie that replaces fields by functions of the honest ones; maps stay in the order of their keys."""

    def lie(message):
        altered = {name: alter(getattr(message, name)) for name, alter in fields.items()}
        return msgspec.structs.replace(message, **{name: in_order(value) for name, value in altered.items()})

    return lie


def in_order(value):
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def lying(kind, lie, liars=(LIAR,), losses=()):
    inputs = random_inputs(P, 5)
    deviants = {u: Deviant(SecAggClient(u, NoisyInput(inputs[u])), kind, lie) for u in liars}
    return Round(P, inputs, losses, clients=deviants)


def check_sum(session, outputs):
    for output, expected in zip(outputs, session.expected(outputs), strict=True):
        assert np.array_equal(output.total, expected)


def check_dropout(session, kind):
    """The liar is counted as lost at that stage and is named, nobody else is, and the sums are right."""
    outputs = session.run()
    check_sum(session, outputs)
    first = outputs[0]
    assert first.named == {LIAR}
    assert not first.stayed
    if kind in (AdvertiseKeys, ShareKeys, DeliverShares):
        assert all(LIAR not in output.survivors for output in outputs)
    else:
        assert (LIAR in first.survivors) == (kind is not CollectInput)
    assert {*IDS} - {LIAR} <= {*first.survivors}
    if kind is Unmask:
        assert LIAR not in session.server.chunks[0].summing.u5


def flipped(data):
    return bytes([data[0] ^ 1]) + data[1:]


def longer(data):
    return data + bytes(1)


def shorter(data):
    return data[:-1]


def out_of_range(shares):
    return b"\xff\xff\xff\x7f" + shares[4:]


def another_chunk(chunk):
    return chunk + 1


def without_first(mapping):
    return dict(list(mapping.items())[1:])


KINDS = [AdvertiseKeys, ShareKeys, DeliverShares, CollectInput, Unmask, RemoveNoise]


def losses_for(kind):
    return STAGE_5 if kind is RemoveNoise else ()


def wrong_shares(*places):
    """Return a function that makes the shares at these places wrong, but well-formed."""

    def alter(shares):
        data = bytearray(shares)
        for place in places:
            data[SHARE_BYTES * place] ^= 1
        return bytes(data)

    return alter


def keys_of(u, **fields):
    def alter(request):
        keys = msgspec.structs.replace(request.advertisements[u], **fields)
        return ShareKeys({**request.advertisements, u: keys})  # in the same order

    return alter


class Intercepted(Deviant):
    """An honest client whose shares are altered on the way to it."""

    def handle(self, request):
        return self.client.handle(self._lie(request) if type(request) is self._kind else request)
