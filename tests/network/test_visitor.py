"""A client that visits: its contribution is put until the server has decided, and refusals end the round."""

from datetime import UTC, datetime

import pytest

from dordis.errors import LoginRefused, ProtocolError
from dordis.identity.keys import load_client_credentials
from dordis.network.authentication import LoginCredentials
from dordis.network.client_transfers import Address
from dordis.network.visitor import RunOver, Visitor, check_not_refused
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.plaintext.messages import Contribution
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


def test_a_status_that_is_no_refusal_is_tried_again():
    for status in (400, 408, 416, 503):
        check_not_refused(status)
