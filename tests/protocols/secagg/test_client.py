"""A client repeats its reply to a repeated request, aborts at any other, and erases its secrets when it leaves."""

import gc
import weakref
from copy import deepcopy

import msgspec
import numpy as np
import pytest

from dordis.errors import Aborted, DordisError, InputError, UnexpectedRequest
from dordis.pipeline import executor as drive
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ENCODER, MemoryJournal
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.secagg import SECAGG, SecAggClient, SecAggServer
from dordis.protocols.secagg.client import SecAggState
from dordis.protocols.secagg.messages import (
    Agree,
    CollectInput,
    DeliverShares,
    PrepareInput,
    RemoveNoise,
    ShareKeys,
    Unmask,
)
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import Round, make_client, random_inputs, registry

P = agree_on(
    mode=MALICIOUS, run=bytes(32), index=3, clients=range(6), threshold=4, tolerance=2, bits=16, ends=[4, 9],
    scheme=Scheme.SINGLE, variances=[5, 7],
)  # fmt: skip
WATCHED = 2
OWING = next(u for u, due in P.due(1, P.clients).items() if due and u != WATCHED)
LOSSES = [(4, "CollectInput", 0), (OWING, "Unmask", 1)]
"""The owing client is lost before it discloses its seed, so that stage 5 takes place in chunk 1."""


class Recorder:
    """Pass requests on to a client and keep request, reply bytes, and the state before and after."""

    def __init__(self, client):
        self.client = client
        self.log = []

    def handle(self, request):
        before = msgspec.msgpack.encode(self.client.state)
        reply = self.client.handle(request)
        self.log.append((request, ENCODER.encode(reply), before))
        return reply


@pytest.fixture
def recorded():
    """Return a finished round's log of one client, its journal and its input."""
    inputs = random_inputs(P, 1)
    journal = MemoryJournal()
    recorder = Recorder(make_client(P, WATCHED, inputs[WATCHED], journal=journal))
    session = Round(P, inputs, LOSSES)
    clients = {**session.clients, WATCHED: recorder}
    lost = frozenset(LOSSES)
    loses = lambda u, m: (u, type(m).__name__, getattr(m, "chunk", -1)) in lost  # noqa: E731
    exchange = LocalExchange(clients, loses, ahead=True)
    drive.run(SecAggServer(P, registry(P)), exchange)
    assert not exchange.errors
    assert {type(request) for request, _, _ in recorder.log} == set(SECAGG.requests)
    return recorder, journal, inputs[WATCHED]


def _restore(state, journal, vector):
    return make_client(P, WATCHED, vector, journal=journal, state=msgspec.msgpack.decode(state, type=SecAggState))


def test_the_same_request_gets_the_same_bytes(recorded):
    recorder, _, _ = recorded
    for request, reply, _ in recorder.log + recorder.log[::-1]:
        assert ENCODER.encode(recorder.client.handle(request)) == reply


def test_a_client_restored_at_any_message_behaves_the_same(recorded):
    recorder, journal, vector = recorded
    for place, (_, _, state) in enumerate(recorder.log):
        for keep in range(place, len(recorder.log) + 1):
            client = _restore(state, _cut(journal, keep), vector)
            for request, reply, _ in recorder.log[:keep]:
                assert ENCODER.encode(client.handle(request)) == reply
            if keep < len(recorder.log) and not _is_random(recorder.log[keep][0]):
                assert ENCODER.encode(client.handle(recorder.log[keep][0])) == recorder.log[keep][1]


def _is_random(request):
    """Sharing draws coefficients anew, so only the stored reply can be the same bytes."""
    return isinstance(request, ShareKeys) or type(request).__name__ == "AdvertiseKeys"


def _cut(journal, keep):
    """Return a journal as it was after so many answers."""
    copy = MemoryJournal()
    copy._claims = dict(list(journal._claims.items())[:keep])
    return copy


def _altered(request):
    match request:
        case ShareKeys():
            return ShareKeys({u: a for u, a in request.advertisements.items() if u != 0})
        case PrepareInput() | CollectInput():
            return None
        case Unmask():
            return Unmask(request.chunk, P.pack(set(P.unpack(request.survivors)) ^ {4}), request.signatures)
        case Agree():
            survivors = P.unpack(request.survivors)
            return Agree(request.chunk, P.pack(survivors[1:]), request.tokens[32:])
        case RemoveNoise():
            return RemoveNoise(request.chunk, P.pack({u for u in P.clients if P.due(1, P.clients)[u]} - {OWING}))
    return msgspec.structs.replace(request, **_other_field(request))


def _other_field(request):
    if hasattr(request, "parameters"):
        return {"parameters": msgspec.structs.replace(P, model=b"other")}
    return {"ciphertexts": {u: c for u, c in request.ciphertexts.items() if u != 0}}


@pytest.mark.parametrize("older_copy", [False, True])
def test_another_request_for_an_answered_stage_aborts_for_good(recorded, older_copy):
    recorder, journal, vector = recorded
    for request, _, state in recorder.log:
        altered = _altered(request)
        if altered is None:
            continue
        kept = _cut(journal, len(recorder.log))
        client = _restore(state, kept, vector) if older_copy else _copy(recorder.client, kept, vector)
        with pytest.raises(UnexpectedRequest):
            client.handle(altered)
        for again in (request, altered):
            with pytest.raises(Aborted):
                client.handle(again)
        with pytest.raises(DordisError):  # the journal knows it too: no older copy comes back to life
            _restore(state, kept, vector).handle(request)


def _copy(client, journal, vector):
    return make_client(P, WATCHED, vector, journal=journal, state=deepcopy(client.state))


@pytest.mark.parametrize("place", range(1, 9))
def test_a_request_out_of_turn_aborts(recorded, place):
    recorder, _, vector = recorded
    requests = [request for request, _, _ in recorder.log]
    early = requests[place]
    if isinstance(early, PrepareInput | CollectInput):
        return  # the other chunk's turn is not this chunk's
    client = make_client(P, WATCHED, vector)
    for request in requests[: place - 1]:
        if type(request).__name__ == "AdvertiseKeys":
            client.handle(request)
    with pytest.raises(DordisError):
        client.handle(early)
    with pytest.raises(Aborted):
        client.handle(requests[0])


def test_an_upload_before_the_set_up_is_refused():
    client = make_client(P, WATCHED, random_inputs(P, 1)[WATCHED])
    with pytest.raises(DordisError):
        client.handle(CollectInput(0))


def test_a_chunk_that_does_not_exist_is_refused(recorded):
    recorder, _, _ = recorded
    with pytest.raises(UnexpectedRequest):
        recorder.client.handle(CollectInput(2))


def test_closing_erases_every_secret(recorded):
    recorder, journal, _ = recorded
    seeds = [own.self_mask for own in recorder.client.state.secrets.values()]
    recorder.client.close()
    stored = repr(journal.__dict__).encode() + msgspec.msgpack.encode(recorder.client.state)
    assert not recorder.client.state.secrets
    assert all(seed not in stored for seed in seeds)


def test_no_secret_is_shown(recorded):
    recorder, _, _ = recorded
    state = recorder.client.state
    for shown in (repr(state), str(state), repr(state.secrets), repr(recorder.client)):
        assert "\\x" not in shown


def test_a_client_is_not_restored_without_its_journal(recorded):
    recorder, _, vector = recorded
    with pytest.raises(InputError, match="journal"):
        SecAggClient(WATCHED, NoisyInput(vector), state=recorder.client.state)


@pytest.mark.parametrize("stop", [ShareKeys, DeliverShares, PrepareInput, CollectInput, Unmask])
def test_a_client_that_leaves_drops_its_vector_and_what_it_made_of_it(stop):
    inputs = random_inputs(P, 1)
    vector = np.array(inputs[2])
    client, held = make_client(P, 2, vector), weakref.ref(vector)
    session = Round(P, inputs, clients={2: client})
    del vector

    def exchange(requests):
        if any(type(request) is stop for request in requests.values()):
            raise InterruptedError
        return session.exchange(requests)

    with pytest.raises(InterruptedError):
        drive.run(session.server, exchange)
    assert held() is not None
    client.close()
    gc.collect()
    assert held() is None
    assert not client._prepared
    assert not client._agreed
    assert not client.state.secrets
