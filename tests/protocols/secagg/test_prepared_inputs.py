"""Uploads prepared ahead: they have the same bytes, and are not sent before they are requested."""

import hashlib
import itertools

import msgspec
import numpy as np
import pytest

from dordis.errors import Aborted, ProtocolError, UnexpectedRequest
from dordis.pipeline import executor as drive
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ENCODER, MemoryJournal
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.secagg import SecAggClient, SecAggServer, masking
from dordis.protocols.secagg.client import SecAggState
from dordis.protocols.secagg.messages import CollectInput, InputReady, PrepareInput
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import Round, random_inputs

P = agree_on(
    run=bytes(32), index=3, clients=range(5), threshold=3, tolerance=2, bits=16, ends=[4, 9],
    scheme=Scheme.SINGLE, variances=[5, 7],
)  # fmt: skip
ME = 2
INPUTS = random_inputs(P, 1)


def entropy(tag):
    calls = itertools.count()
    return lambda size: hashlib.shake_256(b"%d/%d" % (tag, next(calls))).digest(size)


@pytest.fixture
def ready():
    """Return a client that has done its set-up, with its journal."""
    journal = MemoryJournal()
    clients = {u: SecAggClient(u, NoisyInput(x), entropy=entropy(u)) for u, x in INPUTS.items()}
    clients[ME] = SecAggClient(ME, NoisyInput(INPUTS[ME]), journal, entropy=entropy(ME))
    drive.advance(SecAggServer(P).setup.workflow, LocalExchange(clients))
    return clients[ME], journal


@pytest.fixture
def masked_chunks(monkeypatch):
    """Return the chunks that are masked from now on."""
    chunks, original = [], masking.add_masks

    def add_masks(suite, y, parameters, chunk, *rest):
        chunks.append(chunk)
        original(suite, y, parameters, chunk, *rest)

    monkeypatch.setattr(masking, "add_masks", add_masks)
    return chunks


def restored(client, journal):
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(client.state), type=SecAggState)
    return SecAggClient(ME, NoisyInput(INPUTS[ME]), journal, state)


def test_what_was_made_ahead_is_uploaded_and_made_once(ready, masked_chunks):
    client, _ = ready
    for _ in range(2):
        assert client.handle(PrepareInput(1)) == InputReady(1)
    assert client.handle(CollectInput(1)).chunk == 1
    assert masked_chunks == [1]


def test_a_server_that_does_not_ask_ahead_gets_the_same_upload(ready):
    client, _ = ready
    other = restored(client, MemoryJournal())
    client.handle(PrepareInput(0))
    assert ENCODER.encode(client.handle(CollectInput(0))) == ENCODER.encode(other.handle(CollectInput(0)))


def test_a_restored_client_makes_its_upload_again(ready, masked_chunks):
    client, journal = ready
    client.handle(PrepareInput(0))
    again = restored(client, journal)
    assert again.handle(PrepareInput(0)) == InputReady(0)
    assert masked_chunks == [0]
    upload = again.handle(CollectInput(0))
    assert masked_chunks == [0, 0]
    assert client.handle(CollectInput(0)) == upload


def test_the_upload_is_not_in_the_state_and_is_dropped_when_it_has_left(ready):
    client, _ = ready
    client.handle(PrepareInput(0))
    client.handle(PrepareInput(1))
    upload = client.handle(CollectInput(0))
    assert upload.vector not in msgspec.msgpack.encode(client.state)
    assert list(client._prepared) == [1]
    client.close()
    assert not client._prepared


def test_nothing_is_made_after_an_accusation(ready):
    client, _ = ready
    client.state.accused = True
    with pytest.raises(ProtocolError, match="accusation"):
        client.handle(PrepareInput(0))
    with pytest.raises(Aborted):
        client.handle(CollectInput(0))


@pytest.mark.parametrize("chunk", [-1, 2])
def test_a_chunk_that_does_not_exist_is_refused(ready, chunk):
    client, _ = ready
    with pytest.raises(UnexpectedRequest):
        client.handle(PrepareInput(chunk))


def test_a_request_to_prepare_what_has_left_is_refused(ready):
    client, _ = ready
    client.handle(CollectInput(0))
    with pytest.raises(UnexpectedRequest, match="turn"):
        client.handle(PrepareInput(0))


def test_a_request_to_prepare_before_the_set_up_is_refused():
    with pytest.raises(ProtocolError):
        SecAggClient(ME, NoisyInput(INPUTS[ME])).handle(PrepareInput(0))


@pytest.mark.parametrize("lost", ["lost_requests", "lost_replies"])
def test_whoever_does_not_answer_is_asked_for_its_upload_like_everybody(lost):
    session = Round(P, INPUTS, **{lost: [(u, "PrepareInput", 0) for u in (0, 1, 3, 4)]})
    outputs = session.run()
    assert all(output.survivors == P.clients for output in outputs)
    for output, expected in zip(outputs, session.expected(outputs), strict=True):
        assert np.array_equal(output.total, expected)
