"""Whatever a server sends to a client, at whatever stage: an answer, or an error of the tree."""

import random
from copy import deepcopy

import msgspec
import numpy as np
import pytest

from dordis import wire
from dordis.errors import DordisError
from dordis.kernels.ring import pack
from dordis.protocol import ENCODER, MemoryJournal, Message
from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.secagg.messages import CollectInput, PrepareInput, RemoveNoise
from dordis.rounds.invitation import Invite, SendModel, Train
from tests.adversary.participants import BOTH, OTHER_MODEL, agreed
from tests.adversary.session import SHARES, Session, Trail

NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e155, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "0", "1/0", "-1", "0/1", "9" * 400, "semi-honest", "malicious", "none", "single", "exact", "float64", "\0")


def stages(graph):
    """Play a round and return, for every request to one client, the client as it was before and the request."""
    session = Session(agreed(graph, ends=[4, 8], model=OTHER_MODEL.digest), Trail())
    victim, seen = session.victim, []
    deliver = session.deliver

    def noting(party, request):
        if party is session.parties[victim]:
            seen.append((copied(party), request))
        return deliver(party, request)

    session.deliver = noting
    session.reach(SHARES)
    session.open()
    order = session.removal_order()
    u3 = session.u2
    for chunk in (0, 1):
        for u in u3:
            session.ask(u, PrepareInput(chunk))
        session.upload(chunk=chunk)
    owing = next(u for u in order if u != victim and u in session.due(u3))
    session.finish(u3, without=[owing])
    session.ask(victim, RemoveNoise(0, session.parameters.pack([owing])))
    session.finish(u3, chunk=1)
    for chunk in (0, 1):
        sums = pack(np.zeros(4, np.uint32), session.parameters.bits).tobytes()
        session.ask(victim, Dispatch(chunk, len(u3), sums))
        session.ask(victim, Store(chunk))
    return seen


def copied(client):
    """Copy a client with all that it remembers, its journal too."""
    shared = (client.suite, client.protocol, client.owner, client.registry)
    copy = deepcopy(client, {id(one): one for one in shared})
    copy.journals = lambda round: MemoryJournal()
    return copy


def altered(value, rng):
    """Return another value in the place of one, of the same type or of another."""
    if rng.random() < 0.03:
        return rng.choice([None, 0, b"", "", {}, 1.5, True])
    match value:
        case bool():
            return not value
        case int():
            return rng.choice([*NUMBERS, value + 1, value - 1])
        case float():
            return rng.choice([*FLOATS, -value, value * 1.0000001])
        case str():
            return rng.choice([*TEXTS, value + " ", value[:-1], value.upper()])
        case bytes() | bytearray() | memoryview():
            return altered_bytes(bytes(value), rng)
        case dict():
            return altered_map(value, rng)
    return value


def altered_bytes(data, rng):
    place = rng.randrange(len(data)) if data else 0
    flipped = data[:place] + rng.randbytes(1) + data[place + 1 :]
    return rng.choice([flipped, data[:place], data + rng.randbytes(1 + rng.randrange(40)), b"", data + data, flipped])


def altered_map(items, rng):
    items = dict(items)
    key = rng.choice(list(items)) if items else 0
    choice = rng.randrange(5)
    if choice == 0 and items:
        del items[key]
    elif choice == 1:
        items[rng.choice(NUMBERS) if isinstance(key, int) else "more"] = items.get(key, b"")
    elif choice == 2:
        return {}
    elif items:
        items[key] = altered(items[key], rng)
    return dict(sorted(items.items(), key=lambda item: str(item[0]))) if rng.random() < 0.1 else items


def mutated(request, rng):
    """Return the bytes of a request in which something is wrong, and what travels beside them."""
    bulk = bytes(wire.bulk_of(request))
    frame = wire.encode(request)
    if rng.random() < 0.15:
        return altered_bytes(frame, rng), bulk
    plain = msgspec.msgpack.decode(frame[1:], strict=False)
    where = plain
    while True:
        key = rng.choice(list(where))
        if not isinstance(where[key], dict) or not where[key] or rng.random() < 0.3:
            break
        where = where[key]
    where[key] = altered(where[key], rng)
    if bulk and rng.random() < 0.3:
        bulk = altered_bytes(bulk, rng)
    return frame[:1] + ENCODER.encode(plain), bulk


def fuzz(graph, count):
    """Send so many messages, to clients at every stage; return how many were answered and refused."""
    rng, seen = random.Random(f"{graph} {count}"), stages(graph)
    kinds = {type(request) for _, request in seen}
    assert {Invite, SendModel, Train, CollectInput, Dispatch, Store} <= kinds
    assert len(kinds) == 13
    answered = refused = 0
    for number in range(count):
        client, request = seen[number % len(seen)]
        sent = request if rng.random() < 0.85 else rng.choice(seen)[1]  # or one of another stage
        data, bulk = mutated(sent, rng)
        try:
            reply = copied(client).handle(wire.decode(data, type(sent), bulk=bulk))
        except DordisError:
            refused += 1
        else:
            assert isinstance(reply, Message)
            answered += 1
    return answered, refused


@pytest.mark.parametrize("graph", BOTH)
def test_a_client_answers_or_raises_an_error_of_the_tree(graph):
    answered, refused = fuzz(graph, 400)
    assert refused > 200
    assert answered > 0


@pytest.mark.slow
@pytest.mark.parametrize("graph", BOTH)
def test_a_client_answers_or_raises_an_error_of_the_tree_ten_thousand_times(graph):
    answered, refused = fuzz(graph, 10_000)
    assert answered + refused == 10_000
