"""A client that visits: it fetches tasks until the run is over, and the model that a task names."""

from datetime import UTC, datetime

import pytest

from dordis.errors import LoginRefused
from dordis.identity.keys import load_client_credentials
from dordis.network.authentication import LoginCredentials
from dordis.network.client_transfers import Address
from dordis.network.visitor import RunOver, Visitor
from dordis.protocols.plaintext import PLAINTEXT
from tests.network.test_visits import MODEL, Visits, run

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


def test_a_task_is_fetched_once_until_the_run_is_over(visits):
    async def visit():
        own = visitor(visits)
        assert await own._fetch_task() is None
        visits.open()
        assert await own._fetch_task() == b"task 5"
        visits.endpoint.end_run()
        with pytest.raises(RunOver):
            await own._fetch_task()
        return own._requests.connected

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
