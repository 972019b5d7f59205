"""The assisted client: its contribution, repeated requests, and refused parameters."""

import hashlib

import msgspec
import numpy as np
import pytest

from dordis import wire
from dordis.errors import Aborted, InvalidKey, InvalidSignature, ParametersRefused, UnexpectedRequest
from dordis.kernels.ring import packed_size
from dordis.protocol import ClientId
from dordis.protocols.assisted import AssistedClient
from dordis.protocols.assisted.messages import Header, SendContribution, join_pieces, piece
from dordis.protocols.noise_addition_and_removal import NoisyInput
from tests.protocols.assisted.parties import NOW, Round, secret, signing_keys


def contribute(round, parameters=None):
    return round.clients[1].handle(SendContribution(parameters or round.parameters))


@pytest.mark.parametrize(("m", "f", "most"), [(4, 1, 1000), (7, 2, 4800), (3, 1, 800)])
def test_beside_the_vector_a_contribution_is_short_whatever_n(m, f, most):
    sizes = set()
    for n_max in (9, 12):
        round = Round(m=m, f=f, n_max=n_max, n_min=7, options={"abort": m < 3 * f + 1})
        sent = contribute(round)
        assert len(sent.vector) == packed_size(30, 20)
        sizes.add(wire.size(sent) - len(sent.vector))
    assert len(sizes) == 1
    assert sizes.pop() <= most


def test_the_header_has_the_digests_of_everything_sent():
    round = Round()
    sent = contribute(round)
    header = msgspec.msgpack.decode(sent.header, type=Header)
    assert (header.client, header.round) == (1, round.parameters.round)
    assert header.parameters == round.parameters.digest
    assert header.vector == hashlib.sha256(sent.vector).digest()
    size = len(sent.boxes) // 4
    boxes = [sent.boxes[size * k : size * k + size] for k in range(4)]
    assert header.boxes == b"".join(hashlib.sha256(box).digest() for box in boxes)
    assert len(header.seeds) == 32 * 4


def test_the_same_request_gets_the_same_bytes_and_another_one_is_refused():
    round = Round()
    assert contribute(round) == contribute(round)
    other = round.agree(n_min=6)
    with pytest.raises(UnexpectedRequest):
        contribute(round, other)
    with pytest.raises(Aborted):
        contribute(round)


def test_deposited_secrets_are_joined_from_all_sets_and_differ_between_chunks():
    round = Round()
    contribute(round)
    client = round.clients[1]
    issued = [client.issued(chunk).deposited for chunk in (0, 1)]
    assert len({*issued[0], *issued[1]}) == 2
    seeds = client.state.seeds
    pieces = [piece(round.parameters, 1, ClientId(1), rank, 0, seed) for rank, seed in enumerate(seeds)]
    assert issued[1] == (join_pieces(pieces),)
    assert join_pieces(pieces) == bytes(np.bitwise_xor.reduce([np.frombuffer(one, np.uint8) for one in pieces]))
    assert len(set(seeds)) == len(seeds) == 4


def test_no_secret_is_shown():
    round = Round()
    sent, state = contribute(round), round.clients[1].state
    for hidden in (*state.seeds, *state.private[0]):
        assert hidden not in wire.encode(sent) + sent.vector
    assert repr(state) == "<AssistedState after 1 answers>"


def client_of(round, signing=None, helpers=range(1, 5), now=NOW):
    return AssistedClient(
        ClientId(1), NoisyInput(round.inputs[1]), signing=secret(b"client", 1) if signing is None else signing,
        registry=signing_keys(range(1, 9), helpers), clock=lambda: now,
    )  # fmt: skip


def altered(round, **changes):
    keys = dict(round.parameters.helpers)
    keys[2] = msgspec.structs.replace(keys[2], **changes)
    return msgspec.structs.replace(round.parameters, helpers=keys)


def test_keys_of_strangers_expired_altered_and_low_order_ones_are_refused():
    round = Round()
    good = SendContribution(round.parameters)
    client_of(round).handle(good)
    for client, request, error in (
        (client_of(round, signing=b""), good, ParametersRefused),
        (client_of(round, helpers=range(1, 4)), good, ParametersRefused),
        (client_of(round, helpers=range(5, 9)), good, ParametersRefused),
        (client_of(round, now=NOW + 10**6), good, ParametersRefused),
        (client_of(round), SendContribution(altered(round, key=bytes(range(32)))), InvalidSignature),
        (client_of(round), SendContribution(altered(round, not_after=2**40)), InvalidSignature),
        (client_of(round), SendContribution(altered(round, last=9)), InvalidSignature),
    ):
        with pytest.raises(error):
            client.handle(request)


def test_a_signed_key_of_low_order_is_refused(monkeypatch):
    round = Round()
    monkeypatch.setattr("dordis.protocols.assisted.checks.check_epoch_keys_signed", lambda *unused: None)
    with pytest.raises(InvalidKey):
        client_of(round).handle(SendContribution(altered(round, key=bytes(32))))


def test_a_vector_of_another_length_is_refused():
    round = Round()
    client = AssistedClient(
        ClientId(1), NoisyInput(np.zeros(29, np.uint32)), signing=secret(b"client", 1), registry=round.registry,
        clock=lambda: NOW,
    )  # fmt: skip
    with pytest.raises(ValueError, match="30 coordinates, not 29"):
        client.handle(SendContribution(round.parameters))
