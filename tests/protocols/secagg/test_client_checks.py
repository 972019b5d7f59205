"""A client refuses a server that deviates at any stage, and leaves the round for good."""

import pytest

from dordis import wire
from dordis.errors import (
    Aborted,
    InvalidKey,
    MalformedMessage,
    ProtocolError,
    TooManyDropouts,
    UnexpectedRequest,
)
from dordis.pipeline import executor as drive
from dordis.protocols.secagg.messages import (
    CollectInput,
    DeliverShares,
    RemoveNoise,
    ShareKeys,
    Unmask,
)
from tests.protocols.rounds import Round, random_inputs
from tests.protocols.secagg.deviants import (
    IDS,
    KINDS,
    OTHER,
    THIRD,
    P,
    another_chunk,
    change,
    keys_of,
    longer,
    shorter,
    without_first,
)

# One client is lost before U1, one before U2, one at Unmask.
ME = 8
NOT_IN_U1, NOT_IN_U2 = 55, 3
UPLOADED = tuple(u for u in IDS if u not in (NOT_IN_U1, NOT_IN_U2))
STILL_DUE = [u for u, ks in P.due(0, UPLOADED).items() if ks]
SILENT = next(u for u in STILL_DUE if u != ME)
LOSSES = [(NOT_IN_U1, "AdvertiseKeys", -1), (NOT_IN_U2, "ShareKeys", -1), (SILENT, "Unmask", 0)]


def stop_before(kind):
    """Run a round up to the first request of a kind to ME; return that client and the request."""
    session = Round(P, random_inputs(P, 8), LOSSES)
    caught = []

    def exchange(requests):
        if isinstance(requests[ME], kind):
            caught.append(requests[ME])
            raise StopIteration
        return session.exchange(requests)

    with pytest.raises(StopIteration):
        drive.run(session.server, exchange)
    return session.clients[ME], caught[0]


def without(*ids):
    return change(advertisements=lambda a: {u: keys for u, keys in a.items() if u not in ids})


def copied(name, source, target):
    """Give one client's key another client's place."""

    def alter(request):
        return keys_of(target, **{name: getattr(request.advertisements[source], name)})(request)

    return alter


def among(ids):
    return change(
        members=lambda _: P.pack({ME, *ids}),
        ciphertexts=lambda c: {u: text for u, text in c.items() if u in ids},
    )


def removed(bitmap, u):
    return P.pack({*P.unpack(bitmap)} - {u})


def added(bitmap, u):
    return P.pack({*P.unpack(bitmap), u})


def survivors(*ids):
    return change(survivors=lambda _: P.pack(ids))


def owing(*ids):
    return change(owing=lambda _: P.pack(ids))


NOT_DUE = next(u for u in UPLOADED if u not in STILL_DUE)
FROM_THE_SERVER = {
    "U1 without me": (ShareKeys, without(ME), ProtocolError, "leaves me out"),
    "U1 with a stranger": (
        ShareKeys,
        change(advertisements=lambda a: a | {99: a[ME]}),
        ProtocolError,
        "must not name",
    ),
    "U1 too small": (ShareKeys, without(*(u for u in IDS if u not in (ME, OTHER))), ProtocolError, "quorum|threshold"),
    "nobody in U1": (ShareKeys, without(*IDS), ProtocolError, "leaves me out"),
    "my channel key altered": (ShareKeys, keys_of(ME, channel=b"\1" * 32), ProtocolError, "my own keys"),
    "my masking keys altered": (ShareKeys, keys_of(ME, masking=b"\1" * 64), ProtocolError, "my own keys"),
    "my tokens altered": (ShareKeys, keys_of(ME, tokens=b"\1" * 64), ProtocolError, "my own keys"),
    "a peer has my channel key": (ShareKeys, copied("channel", ME, OTHER), ProtocolError, "twice"),
    "two peers have one channel key": (ShareKeys, copied("channel", THIRD, OTHER), ProtocolError, "twice"),
    "two peers have the same masking keys": (ShareKeys, copied("masking", THIRD, OTHER), ProtocolError, "twice"),
    "a peer has one key in both chunks": (ShareKeys, keys_of(OTHER, masking=b"\7" * 64), ProtocolError, "twice"),
    "a peer's channel key is short": (ShareKeys, keys_of(OTHER, channel=bytes(31)), MalformedMessage, "wrong"),
    "a peer's masking key is missing": (ShareKeys, keys_of(OTHER, masking=bytes(32)), MalformedMessage, "wrong"),
    "a peer's tokens are missing": (ShareKeys, keys_of(OTHER, tokens=b""), MalformedMessage, "wrong"),
    "a peer's channel key is zero": (ShareKeys, keys_of(OTHER, channel=bytes(32)), InvalidKey, "low order"),
    "U2 without me": (DeliverShares, change(members=lambda m: removed(m, ME)), ProtocolError, "U2 leaves me out"),
    "U2 with one outside U1": (
        DeliverShares,
        change(members=lambda m: added(m, NOT_IN_U1), ciphertexts=lambda c: c | {NOT_IN_U1: c[OTHER]}),
        ProtocolError,
        "U2 names",
    ),
    "U2 with padding": (DeliverShares, change(members=lambda m: bytes([m[0] | 0x80])), MalformedMessage, "bitmap"),
    "the shares of a stranger": (DeliverShares, change(ciphertexts=lambda c: c | {99: b"x"}), ProtocolError, "U2"),
    "the shares of myself": (DeliverShares, change(ciphertexts=lambda c: c | {ME: b"x"}), ProtocolError, "U2"),
    "shares of U2 withheld": (DeliverShares, change(ciphertexts=without_first), ProtocolError, "U2"),
    "U2 with more than T missing": (DeliverShares, among((OTHER, THIRD)), TooManyDropouts, "tolerates 3"),
    "U2 smaller than t": (DeliverShares, among((OTHER,)), ProtocolError, "quorum|threshold"),
    "U2 with nobody else": (DeliverShares, among(()), ProtocolError, "quorum|threshold"),
    "no such chunk": (CollectInput, change(chunk=lambda _: 2), UnexpectedRequest, "no place"),
    "a negative chunk": (CollectInput, change(chunk=lambda _: -1), UnexpectedRequest, "no place"),
    "unmasking before the upload": (CollectInput, lambda _: Unmask(0, P.pack(UPLOADED)), UnexpectedRequest, "turn"),
    "U3 with one outside U1": (Unmask, survivors(*UPLOADED, NOT_IN_U1), ProtocolError, "U3 names"),
    "U3 with one outside U2": (Unmask, survivors(*UPLOADED, NOT_IN_U2), ProtocolError, "U3 names"),
    "U3 without me": (Unmask, survivors(*(u for u in UPLOADED if u != ME)), ProtocolError, "leaves me out"),
    "U3 smaller than t": (Unmask, survivors(ME, OTHER), ProtocolError, "quorum|threshold"),
    "U3 of myself": (Unmask, survivors(ME), ProtocolError, "quorum|threshold"),
    "U3 with more than T dropped": (Unmask, survivors(ME, OTHER, THIRD), TooManyDropouts, "4 clients dropped"),
    "U3 too long": (Unmask, change(survivors=longer), MalformedMessage, "bitmap"),
    "U3 too short": (Unmask, change(survivors=shorter), MalformedMessage, "bitmap"),
    "U3 with padding": (Unmask, change(survivors=lambda b: bytes([b[0] | 0x80])), MalformedMessage, "bitmap"),
    "unmasking of the other chunk": (Unmask, change(chunk=another_chunk), UnexpectedRequest, "turn"),
    "noise removal before unmasking": (Unmask, lambda _: RemoveNoise(0, P.pack([SILENT])), UnexpectedRequest, "turn"),
    "seeds of nobody": (RemoveNoise, owing(), ProtocolError, "names nobody"),
    "a seed not due": (RemoveNoise, owing(NOT_DUE), ProtocolError, "must not name"),
    "a seed not due among due ones": (RemoveNoise, owing(SILENT, NOT_DUE), ProtocolError, "must not name"),
    "the seed of a dropped client": (RemoveNoise, owing(NOT_IN_U2), ProtocolError, "must not name"),
    "the seeds of everyone": (RemoveNoise, owing(*IDS), ProtocolError, "must not name"),
    "a set too long": (RemoveNoise, change(owing=longer), MalformedMessage, "bitmap"),
    "another U3 after the first": (
        RemoveNoise,
        lambda _: Unmask(0, P.pack({ME, *UPLOADED[:-1]})),
        UnexpectedRequest,
        "another",
    ),
}


@pytest.mark.parametrize(("kind", "alter", "error", "reason"), FROM_THE_SERVER.values(), ids=FROM_THE_SERVER)
def test_a_client_refuses_a_deviating_server_and_leaves_for_good(kind, alter, error, reason):
    client, request = stop_before(kind)
    altered = alter(request)
    with pytest.raises(error, match=reason):
        client.handle(wire.carry(altered, type(altered)))
    for again in (request, altered):
        with pytest.raises(Aborted):
            client.handle(again)
    assert not client.state.secrets
    assert not client.state.shares


@pytest.mark.parametrize("source", [ME, THIRD])
def test_a_copied_key_is_refused_however_it_is_written(source):
    client, request = stop_before(ShareKeys)
    key = request.advertisements[source].channel
    altered = keys_of(OTHER, channel=key[:-1] + bytes([key[-1] | 0x80]))(request)
    with pytest.raises(InvalidKey, match="canonical"):
        client.handle(altered)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_requests_unaltered_are_answered(kind):
    client, request = stop_before(kind)
    assert isinstance(client.handle(request), kind.reply)
