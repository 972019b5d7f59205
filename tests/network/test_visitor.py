"""A client that visits: its contribution is put until the server has decided, and refusals end the round."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import aiohttp
import pytest

from dordis.errors import LoginRefused, ProtocolError
from dordis.identity.keys import load_client_credentials
from dordis.network.authentication import LoginCredentials
from dordis.network.client_transfers import ATTEMPTS, Address
from dordis.network.visitor import RunOver, Visitor, check_not_refused
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.plaintext.messages import Contribution
from tests.network.local_server import HANG
from tests.network.test_visits import INDEX, MODEL, Visits, run

pytestmark = pytest.mark.network


@pytest.fixture
def visits(folder):
    visits = Visits(folder)
    yield visits
    visits.server.stop()


def visitor(visits, u=1):
    own = load_client_credentials(visits.folder / f"c{u}.key", datetime.now(UTC))
    address = Address("localhost", visits.server.port)
    return Visitor(address, LoginCredentials(own), lambda welcome: None, PLAINTEXT, 0.1)


def contribution(letter):
    return Contribution(ord(letter), letter.encode() * 100_000)


def test_a_contribution_is_taken_refused_or_late(visits):
    async def visit():
        taken = visits.take_in_background(visits.open())
        assert await visitor(visits)._put(INDEX, contribution("a"))
        assert await visitor(visits)._put(INDEX, contribution("a"))
        with pytest.raises(ProtocolError, match="409"):
            await visitor(visits)._put(INDEX, contribution("b"))
        with pytest.raises(ProtocolError, match="422"):
            await visitor(visits, 2)._put(INDEX, contribution("x"))
        assert await visitor(visits, 2)._put(INDEX, contribution("c"))
        assert not await visitor(visits, 3)._put(INDEX, contribution("d"))
        return await taken

    assert [u for u, _ in run(visit())] == [1, 2]


def test_a_task_is_fetched_once_until_the_run_is_over(visits):
    async def visit():
        own = visitor(visits)
        assert await own._fetch_task() is None
        visits.open()
        assert await own._fetch_task() == b"task 5"
        visits.endpoint.end_run()
        with pytest.raises(RunOver):
            await own._fetch_task()
        return own._connected

    connected = run(visit())
    assert connected.requests == 1
    assert connected.seconds > 0


def test_a_client_that_is_no_member_is_told_so(visits):
    authenticator = visits.endpoint._authenticator
    authenticator.registry = authenticator.registry.restrict([2, 3])
    with pytest.raises(LoginRefused, match="client 1 is unknown to this run"):
        run(visitor(visits)._fetch_task())


def test_a_model_is_fetched_whole(visits):
    class Named:
        model, model_bytes, dtype = MODEL.digest, len(MODEL.data), MODEL.dtype

    class OneTask:
        invite = Named

    async def visit():
        visits.open()
        return await visitor(visits)._model(OneTask)

    assert run(visit()).digest == MODEL.digest


def test_a_server_that_sends_parts_of_a_model_is_not_asked_for_ever(visits, monkeypatch):
    asked = []

    @asynccontextmanager
    async def answer(method, path, headers=None, data=None):
        asked.append(path)
        yield SimpleNamespace(content=SimpleNamespace(iter_any=parts))

    async def parts():
        yield b""

    monkeypatch.setattr("dordis.network.visitor.FIRST_PAUSE", 0.0)
    named = SimpleNamespace(model=MODEL.digest, model_bytes=len(MODEL.data), dtype=MODEL.dtype)

    async def visit():
        own = visitor(visits)
        own._request = answer
        async with asyncio.timeout(HANG):
            await own._model(SimpleNamespace(invite=named))

    with pytest.raises(aiohttp.ClientError, match="only a part"):
        run(visit())
    assert len(asked) == ATTEMPTS


def test_a_status_that_is_no_refusal_is_tried_again():
    for status in (400, 408, 416, 503):
        check_not_refused(status)
