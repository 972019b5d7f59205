"""Visits over loopback TLS: what a server answers to each request, whole, resumed, repeated, changed or late."""

import asyncio
import time
from datetime import UTC, datetime

import aiohttp
import pytest

from dordis import wire
from dordis.config.schema import Deadlines
from dordis.errors import ProtocolError
from dordis.identity.keys import load_client_credentials, load_server_credentials
from dordis.identity.registry import SignedRegistry
from dordis.network import download_endpoint
from dordis.network.authentication import Authenticator, client_context
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.download_endpoint import decode_history, split_history
from dordis.network.messages import SUBPROTOCOL, VERSION_HEADER, task_tag
from dordis.network.server import Server
from dordis.network.visits import PublishedRound, VisitEndpoint
from dordis.protocol import OpenCall
from dordis.protocols.plaintext import Contribute, Contribution
from dordis.records.run_records import RECEIPTS
from dordis.rounds.arrivals import Arrival, ArrivalStore
from dordis.rounds.model import ModelBytes
from tests.adversary.receipts import finished
from tests.network.local_server import drain_connections
from tests.network.test_upload_endpoint import full_file

pytestmark = pytest.mark.network

INDEX, RUN = 5, bytes(range(32))
MODEL = ModelBytes.from_numbers(range(100_000))
HOUR = 3600.0


def run(work):
    """Run a coroutine until its connections are closed."""

    async def drained():
        try:
            return await work
        finally:
            await drain_connections()

    return asyncio.run(drained())


def body_of(seed=b"a", length=100_000):
    """Return the body of a contribution."""
    frame = wire.encode(Contribution(seed[0], b""))
    return len(frame).to_bytes(4, "big") + frame + seed * length


class Visits:
    """A server whose round INDEX is open for clients 1 to 3 until `most` contributions are admitted."""

    def __init__(self, folder, most=2, closes=HOUR):
        self.folder, self.store = folder, ArrivalStore()
        credentials = load_server_credentials(folder / "server.key", datetime.now(UTC))
        members = SignedRegistry.load(folder / "registry.json", credentials.authority).registry
        authenticator = Authenticator(credentials, members, folder / "registry.json")
        self.endpoint = VisitEndpoint(authenticator, b"the manifest", self.store, 7.0, finished()[0] / RECEIPTS)
        deadlines = AdaptiveDeadlines(Deadlines())
        self.server = Server(authenticator, RUN, deadlines, visits=self.endpoint)
        self.server.start("127.0.0.1", 0)
        self.most, self.closes = most, closes

    def admit(self, u, reply):
        if reply.chunk == ord("x"):
            raise ProtocolError("it is not signed")
        self.store.add(Arrival(u, wire.encode(reply), bytes(wire.bulk_of(reply))))

    def open(self, index=INDEX):
        """Open a round; return the iterator over its contributions."""
        self.store.begin(Arrival(index, b"", b""))
        self.endpoint.begin(index)
        call = OpenCall(Contribute(0), self.most, self.admit, self.store.clients)

        class Counting(OpenCall):
            is_full = property(lambda call: len(self.store.clients) >= self.most)

        call.__class__ = Counting
        published = PublishedRound(index, b"task %d" % index, time.time() + self.closes, MODEL, {1, 2, 3}, 1 << 20)
        return self.server.perform(self.endpoint.take(call, published))

    def take_in_background(self, taking):
        """Take contributions in a thread, as a round does."""
        return asyncio.get_running_loop().run_in_executor(None, list, taking)

    async def request(self, method, path, client="c1", data=None, version=SUBPROTOCOL, **headers):
        """Make one request; return status, headers and body."""
        own = load_client_credentials(self.folder / f"{client}.key", datetime.now(UTC))
        given = {VERSION_HEADER: version} | {name.replace("_", "-"): text for name, text in headers.items()}
        url = f"https://localhost:{self.server.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, ssl=client_context(own), data=data, headers=given) as response,
        ):
            return response.status, response.headers, await response.read()

    async def put(self, data, client="c1", index=INDEX, **headers):
        return await self.request("PUT", f"/contributions/{index}", client, data, **headers)


@pytest.fixture
def visits(folder):
    visits = Visits(folder)
    yield visits
    visits.server.stop()


def test_a_visit_gets_task_manifest_and_model(visits):
    async def visit():
        assert (await visits.request("GET", "/task"))[0] == 204
        visits.open()
        status, headers, document = await visits.request("GET", "/task")
        assert (status, document, headers["ETag"]) == (200, b"task 5", task_tag(b"task 5"))
        status, headers, _ = await visits.request("GET", "/task", If_None_Match=headers["ETag"])
        assert (status, headers["Retry-After"]) == (304, "7")
        assert (await visits.request("GET", "/task", "c4"))[0] == 204  # it may not contribute
        assert (await visits.request("GET", "/manifest"))[2] == b"the manifest"
        path = f"/model/{MODEL.digest.hex()}"
        assert (await visits.request("GET", path))[2] == MODEL.data
        status, headers, rest = await visits.request("GET", path, Range="bytes=1000-")
        assert (status, rest) == (206, MODEL.data[1000:])
        assert headers["Content-Range"] == f"bytes 1000-{len(MODEL.data) - 1}/{len(MODEL.data)}"
        assert (await visits.request("GET", "/model/00"))[0] == 404
        visits.endpoint.end_run()
        assert (await visits.request("GET", "/task"))[0] == 410

    run(visit())


def test_a_contribution_is_taken_once_repeated_acknowledged_and_changed_refused(visits):
    async def visit():
        taken = visits.take_in_background(visits.open())
        assert (await visits.put(body_of(b"a")))[0] == 204
        assert (await visits.put(body_of(b"a")))[0] == 204
        assert (await visits.put(body_of(b"b")))[0] == 409
        assert (await visits.request("HEAD", f"/contributions/{INDEX}"))[0] == 204
        assert (await visits.put(body_of(b"x"), "c2"))[0] == 422
        assert (await visits.put(body_of(b"c"), "c2"))[0] == 204
        return await taken

    taken = run(visit())
    assert [(u, bytes(reply.vector[:2])) for u, reply in taken] == [(1, b"aa"), (2, b"cc")]


def test_a_contribution_to_a_round_that_is_not_open_again_yet_may_come_again(visits):
    async def visit():
        assert (await visits.put(body_of()))[0] == 503  # the server has just started
        taken = visits.take_in_background(visits.open())
        assert [(await visits.put(body_of(), f"c{u}"))[0] for u in (1, 2)] == [204, 204]
        await taken

    run(visit())


def test_a_late_contribution_is_answered_with_the_next_index(visits):
    async def visit():
        taken = visits.take_in_background(visits.open())
        status, headers, _ = await visits.put(body_of(), index=INDEX - 1)
        assert (status, headers["Dordis-Index"]) == (410, str(INDEX))
        for u in (1, 2):
            assert (await visits.put(body_of(), f"c{u}"))[0] == 204
        await taken
        status, headers, _ = await visits.put(body_of(), "c3")
        assert (status, headers["Dordis-Index"]) == (410, str(INDEX + 1))
        assert (await visits.put(body_of(), "c1"))[0] == 204  # it was taken before

    run(visit())


def test_an_interrupted_upload_continues_where_it_stopped(visits):
    async def pieces():
        yield body[:50_000]
        raise ConnectionResetError

    body = body_of()

    async def visit():
        taken = visits.take_in_background(visits.open())
        with pytest.raises((aiohttp.ClientError, ConnectionResetError)):
            await visits.put(pieces(), Content_Length=str(len(body)))
        path, there = f"/contributions/{INDEX}", 0
        while not there:  # the server notices the end of the connection a little later
            _, headers, _ = await visits.request("HEAD", path)
            there = int(headers["Upload-Offset"])
        wrong = await visits.put(body[10:], Content_Range=f"bytes 10-{len(body) - 1}/{len(body)}")
        assert wrong[0] in (416, 503)
        status = 503
        while status == 503:
            rest = f"bytes {there}-{len(body) - 1}/{len(body)}"
            status, _, _ = await visits.put(body[there:], Content_Range=rest)
        assert status == 204
        await visits.put(body_of(), "c2")
        return await taken

    (_, reply), _ = run(visit())
    assert bytes(reply.vector) == b"a" * 100_000


def test_a_contribution_while_the_disk_is_full_is_refused_for_now_and_comes_again(visits, monkeypatch, caplog):
    async def scenario():
        taking = visits.take_in_background(visits.open())
        with monkeypatch.context() as patched:
            patched.setattr(download_endpoint.tempfile, "TemporaryFile", full_file)
            status, headers, _ = await visits.put(body_of(b"a"), "c1")
            assert (status, headers["Retry-After"]) == (503, "1")
        assert (await visits.put(body_of(b"a"), "c1"))[0] == 204
        assert (await visits.put(body_of(b"b"), "c2"))[0] == 204
        assert sorted(u for u, _ in await taking) == [1, 2]

    run(scenario())
    assert "No space left on device" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_contributions_that_wait_to_be_admitted_count_among_the_uploads(visits, monkeypatch):
    monkeypatch.setattr("dordis.network.visits.MOST_UPLOADS", 1)

    async def visit():
        taking = visits.open()
        first = asyncio.ensure_future(visits.put(body_of(), "c1"))
        while visits.endpoint._waiting.empty():
            await asyncio.sleep(0)
        status, headers, _ = await visits.put(body_of(), "c2")
        assert (status, headers["Retry-After"]) == (503, "1")
        visits.most = 1
        await visits.take_in_background(taking)
        return (await first)[0]

    assert run(visit()) == 204


def test_a_round_closes_when_its_time_is_up(visits):
    visits.closes = 0.0
    assert list(visits.open()) == []


def test_a_round_without_enough_contributions_is_extended(visits):
    visits.closes = 0.0
    extended = []

    async def take():
        taking = visits.open()

        def later():
            extended.append(True)
            return PublishedRound(INDEX, b"later", time.time() + HOUR, MODEL, {1, 2, 3}, 1 << 20)

        visits.endpoint._open.extend = later
        taken = visits.take_in_background(taking)
        for u in (1, 2):
            status = 410
            while status == 410:  # until it is extended
                status, _, _ = await visits.put(body_of(), f"c{u}")
        return await taken

    assert len(run(take())) == 2
    assert extended == [True]


@pytest.mark.parametrize(
    ("status", "client", "version", "data", "headers"),
    [
        (426, "c1", "dordis.1.1", b"", {}),
        (403, "c4", SUBPROTOCOL, body_of(), {}),
        (413, "c1", SUBPROTOCOL, b"abc", {}),
        (413, "c1", SUBPROTOCOL, body_of(), {"Content_Range": "bytes 5-6/7"}),
        (422, "c1", SUBPROTOCOL, b"\xff" * 20, {}),
    ],
)
def test_other_requests_are_refused(visits, status, client, version, data, headers):
    async def visit():
        taking = visits.take_in_background(visits.open())
        path = f"/contributions/{INDEX}"
        try:
            return (await visits.request("PUT", path, client, data, version, **headers))[0]
        finally:
            visits.endpoint.stop()
            await asyncio.gather(taking, return_exceptions=True)

    assert run(visit()) == status


def test_a_client_that_is_not_a_member_of_the_run_is_refused(visits):
    authenticator = visits.endpoint._authenticator
    authenticator.registry = authenticator.registry.restrict([2, 3])

    async def visit():
        return [await visits.request("GET", path) for path in ("/task", "/manifest", f"/model/{MODEL.digest.hex()}")]

    answers = run(visit())
    assert [status for status, _, _ in answers] == [403] * 3
    assert b"client 1 is unknown to this run" in answers[0][2]


def test_a_client_that_asks_gets_the_history_of_the_run_with_its_task(visits):
    async def visit():
        with_task = await visits.request("GET", "/task?after=0&known=0")
        return with_task, await visits.request("GET", "/receipts?known=-1"), await visits.request("GET", "/task")

    visits.open()
    (status, headers, body), (_, _, whole), (_, plain, document) = run(visit())
    assert status == 200
    task, shown = split_history(body)
    assert task == document == b"task %d" % INDEX
    assert headers["ETag"] == plain["ETag"]
    assert [entry.index for entry in shown] == [1]
    assert shown[0].receipt is not None  # client 1 was in the round
    assert [entry.index for entry in decode_history(whole)] == [0, 1]


def test_a_stranger_gets_no_history(visits):
    authenticator = visits.endpoint._authenticator
    authenticator.registry = authenticator.registry.restrict([2, 3])
    status, _, body = run(visits.request("GET", "/receipts"))
    assert (status, b"unknown to this run" in body) == (403, True)
