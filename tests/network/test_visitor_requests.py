"""Requests of a client that visits: a contribution is put until the server has decided, and refusals are final."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import aiohttp
import pytest

from dordis.errors import ProtocolError
from dordis.identity.keys import load_client_credentials
from dordis.network.authentication import LoginCredentials
from dordis.network.client_transfers import (
    ATTEMPTS,
    PROGRESS,
    Address,
    ServerBusy,
    VisitorRequests,
    check_admitted,
    check_not_refused,
)
from dordis.protocols.plaintext import Contribution
from tests.network.local_server import HANG
from tests.network.test_visits import INDEX, MODEL, Visits, run

pytestmark = pytest.mark.network


@pytest.fixture
def visits(folder):
    visits = Visits(folder)
    yield visits
    visits.server.stop()


def requests(visits, u=1):
    own = load_client_credentials(visits.folder / f"c{u}.key", datetime.now(UTC))
    return VisitorRequests(Address("localhost", visits.server.port), LoginCredentials(own), lambda reason: None)


def contribution(letter):
    return Contribution(ord(letter), letter.encode() * 100_000)


def test_a_contribution_is_taken_refused_or_late(visits):
    async def visit():
        taken = visits.take_in_background(visits.open())
        assert await requests(visits).put(INDEX, contribution("a"))
        assert await requests(visits).put(INDEX, contribution("a"))
        with pytest.raises(ProtocolError, match="409"):
            await requests(visits).put(INDEX, contribution("b"))
        with pytest.raises(ProtocolError, match="422"):
            await requests(visits, 2).put(INDEX, contribution("x"))
        assert await requests(visits, 2).put(INDEX, contribution("c"))
        assert not await requests(visits, 3).put(INDEX, contribution("d"))
        return await taken

    assert [u for u, _ in run(visit())] == [1, 2]


def test_a_server_that_sends_parts_of_a_model_is_not_asked_for_ever(visits, monkeypatch):
    asked = []

    @asynccontextmanager
    async def answer(method, path, headers=None, data=None):
        asked.append(path)
        yield SimpleNamespace(content=SimpleNamespace(iter_any=parts), content_length=0)

    async def parts():
        yield b""

    monkeypatch.setattr("dordis.network.client_transfers.FIRST_PAUSE", 0.0)

    async def visit():
        own = requests(visits)
        own.request = answer
        async with asyncio.timeout(HANG):
            await own.download(f"/model/{MODEL.digest.hex()}", len(MODEL.data), len(MODEL.data))

    with pytest.raises(aiohttp.ClientError, match="only a part"):
        run(visit())
    assert len(asked) == ATTEMPTS


def test_a_download_that_breaks_off_again_and_again_is_finished_if_every_attempt_brings_it_forward(visits, monkeypatch):
    model = bytes(range(256)) * 256 * 2 * ATTEMPTS

    @asynccontextmanager
    async def answer(method, path, headers=None, data=None):
        start = int((headers or {}).get("Range", "bytes=0-")[len("bytes=") : -1])

        async def part():
            yield model[start : start + PROGRESS]

        yield SimpleNamespace(content=SimpleNamespace(iter_any=part), content_length=len(model) - start)

    monkeypatch.setattr("dordis.network.client_transfers.FIRST_PAUSE", 0.0)

    async def visit():
        own = requests(visits)
        own.request = answer
        async with asyncio.timeout(HANG):
            return await own.download("/model", len(model))

    assert run(visit()) == model


def test_a_status_that_is_no_refusal_is_tried_again():
    for status in (400, 408, 416, 503):
        check_not_refused(status)


def test_a_download_is_repeated_when_the_server_is_busy(visits, monkeypatch):
    answers = [ServerBusy(0.0), b"model"]

    @asynccontextmanager
    async def answer(method, path, headers=None, data=None):
        if isinstance(given := answers.pop(0), Exception):
            raise given

        async def parts():
            yield given

        yield SimpleNamespace(content=SimpleNamespace(iter_any=parts), content_length=len(given))

    async def visit():
        own = requests(visits)
        own.request = answer
        return await own.download("/model/00", 5, 5)

    assert run(visit()) == b"model"
    assert not answers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_no_redirect_is_followed(status, method):
    answer = SimpleNamespace(status=status, headers={}, raise_for_status=lambda: None)
    with pytest.raises(aiohttp.ClientConnectionError, match="redirects"):
        asyncio.run(check_admitted(answer, method))
