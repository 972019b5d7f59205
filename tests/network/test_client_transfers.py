"""Transfers of a client: resumed, repeated when the server is busy, and given up without harm."""

import asyncio
import threading

import pytest
from aiohttp import InvalidURL, web

from dordis.errors import InputError
from dordis.network import client_transfers, upload_endpoint
from dordis.network.client_transfers import ATTEMPTS, Address
from dordis.protocols.delivery import Dispatch, Received
from dordis.protocols.plaintext import Begin, Contribute, Joined
from tests.network.local_server import HANG, PARAMETERS, SIZE, VECTORS, ScriptedParty

pytestmark = pytest.mark.network


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://localhost", "must be https://host:port"),
        ("http://localhost:8765", "must be https://host:port"),
        ("https://local host:8765", "must be https://host:port"),
        ("https://::1:8765", "must be https://host:port"),
        ("https://me@localhost:8765", "must be https://host:port"),
        ("https://localhost:\u00b2", "must be https://host:port"),
        ("https://a..b:8765", "must be https://host:port"),
        (f"https://{'a' * 64}.example:8765", "must be https://host:port"),
        ("https://localhost:0", "from 1 to 65535"),
        ("https://localhost:99999", "from 1 to 65535"),
    ],
)
def test_an_address_that_nothing_can_be_at_is_refused(url, reason):
    with pytest.raises(InputError, match=reason):
        Address.from_url(url)


def test_an_address_is_a_name_or_a_number():
    for host in ("localhost", "dordis.example", "dordis.example.", "10.0.0.1", "[::1]", "[fe80::1%eth0]"):
        assert Address.from_url(f"https://{host}:8765/") == Address(host, 8765)


def test_only_a_proxy_that_is_set_is_said_to_fail(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert client_transfers.describe_error(InvalidURL("https://a..b")) == "the address is invalid: https://a..b"
    monkeypatch.setenv("https_proxy", "nonsense")
    assert client_transfers.describe_error(InvalidURL("nonsense")) == "the proxy in HTTPS_PROXY failed: nonsense"


@pytest.mark.parametrize("limit", ["MOST_UPLOADS", "MOST_TRANSFERS"])
def test_an_upload_is_repeated_when_a_busy_server_asks_for_it(local, monkeypatch, limit):
    waited, most = [], getattr(upload_endpoint, limit)
    monkeypatch.setattr(upload_endpoint, "RETRY_LATER", {"Retry-After": "7"})
    monkeypatch.setattr(upload_endpoint, limit, 0)

    async def wait(seconds):
        waited.append(seconds)
        if len(waited) > client_transfers.ATTEMPTS:  # a busy server is not a failure
            monkeypatch.setattr(upload_endpoint, limit, most)

    monkeypatch.setattr(client_transfers, "wait_while_busy", wait)
    local.join(1, ScriptedParty(1))
    local.ask({1: Begin(PARAMETERS)})
    assert local.ask_vector(1) == VECTORS[1]
    assert waited == [7.0] * (client_transfers.ATTEMPTS + 1)


def test_a_download_is_repeated_when_a_busy_server_asks_for_it(local, monkeypatch):
    waited, most = [], upload_endpoint.MOST_TRANSFERS
    monkeypatch.setattr(upload_endpoint, "MOST_TRANSFERS", 0)

    async def wait(seconds):
        waited.append(seconds)
        monkeypatch.setattr(upload_endpoint, "MOST_TRANSFERS", most)

    monkeypatch.setattr(client_transfers, "wait_while_busy", wait)
    local.join(1, ScriptedParty(1))
    assert local.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    assert waited == [1.0]


def test_a_download_that_breaks_off_again_and_again_is_finished_if_every_attempt_brings_it_forward(
    serving, folder, monkeypatch
):
    asked = []

    async def send_a_part(endpoint, request):
        asked.append(start := request.http_range.start or 0)
        if start > len(body):
            return web.Response(status=416)
        response = web.StreamResponse(headers={"Content-Length": str(len(body) - start)})
        await response.prepare(request)
        await response.write(body[start : start + client_transfers.PROGRESS])
        await asyncio.sleep(0.05)  # so that the part arrives before the connection is cut
        request.transport.abort()
        return response

    body = bytes(2 * ATTEMPTS * client_transfers.PROGRESS)
    monkeypatch.setattr("dordis.network.download_endpoint.DownloadEndpoint.get", send_a_part)
    monkeypatch.setattr(client_transfers, "FIRST_PAUSE", 0.0)
    local = serving(folder)
    local.join(1, ScriptedParty(1))
    assert local.ask({1: Dispatch(0, 7, body)}) == {1: Received(0)}
    assert len(asked) > ATTEMPTS


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("86400", 30.0), ("soon", 30.0), ("", 30.0), ("0", client_transfers.FIRST_PAUSE)],
)
def test_a_client_waits_as_long_as_the_server_asks_within_bounds(header, seconds):
    with pytest.raises(client_transfers.ServerBusy) as busy:
        client_transfers.check_not_busy(503, {"Retry-After": header})
    assert busy.value.seconds == seconds
    client_transfers.check_not_busy(204, {})


def answer_uploads(monkeypatch, answer):
    """Let the server respond to every upload with `answer`; return the list of these requests."""
    answered = []

    async def put(intake, request):
        answered.append(request)
        return answer(request)

    monkeypatch.setattr("dordis.network.upload_endpoint.UploadEndpoint.put", put)
    monkeypatch.setattr("dordis.network.client_transfers.FIRST_PAUSE", 0.001)
    return answered


def hang_up(request):
    request.transport.abort()
    return web.Response()


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        hang_up,
        *(
            lambda request, offset=offset: web.Response(status=416, headers={"Upload-Offset": offset})
            for offset in ("many", "-1", "1" * 5000, str(SIZE + 1), "0")
        ),
    ],
    ids=["no answer", "a word", "negative", "long", "beyond the end", "never further"],
)
def test_no_response_to_an_upload_ends_a_client_or_keeps_it_busy(serving, folder, monkeypatch, answer):
    answered = answer_uploads(monkeypatch, answer)
    local = serving(folder, stage=2.0)
    task = local.join(1, ScriptedParty(1))
    assert local.ask({1: Begin(PARAMETERS)}) == {1: Joined()}
    assert local.ask({1: Contribute(0)}) == {}
    local.begin_round()
    assert local.ask({1: Begin(PARAMETERS)}) == {1: Joined()}
    assert not task.done()
    assert 1 <= len(answered) <= 2 * ATTEMPTS


def test_an_upload_that_cannot_be_sent_does_not_end_a_client(serving, folder, monkeypatch):
    local, failed, put = serving(folder, grace=0.0), threading.Event(), client_transfers.Transfers._put

    async def fail(*arguments):
        failed.set()
        raise OSError("no route")

    monkeypatch.setattr(client_transfers, "ATTEMPTS", 1)
    monkeypatch.setattr(client_transfers.Transfers, "_put", fail)
    local.join(1, ScriptedParty(1))
    local.ask({1: Begin(PARAMETERS)})
    replies = local.send({1: Contribute(0)})
    assert failed.wait(HANG)
    assert local.ask({1: Dispatch(0, 7, b"sum")}) == {1: Received(0)}
    local.server.perform(exclude(local, 1))
    assert list(replies) == []
    monkeypatch.setattr(client_transfers.Transfers, "_put", put)
    local.begin_round()
    assert local.ask_vector(1) == VECTORS[1]


async def exclude(local, client):
    local.server.exchange.exclude(client)


@pytest.mark.parametrize(
    ("endpoint", "request_kind"),
    [
        ("upload_endpoint.UploadEndpoint.put", Contribute(0)),
        ("download_endpoint.DownloadEndpoint.get", Dispatch(0, 7, bytes(10**4))),
    ],
    ids=["upload", "download"],
)
def test_a_client_breaks_off_a_transfer_that_its_server_stalls(serving, folder, monkeypatch, endpoint, request_kind):
    """The server sends a byte at a time, or takes none, for ever: the client must not hold its connection for ever."""
    cut = threading.Event()

    async def stall(_, request):
        response = web.StreamResponse()
        try:
            if request.method == "PUT":
                await asyncio.sleep(HANG)
            await response.prepare(request)
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.01)
        finally:
            cut.set()

    monkeypatch.setattr(client_transfers, "STALL", 0.3)
    monkeypatch.setattr(f"dordis.network.{endpoint}", stall)
    local = serving(folder)
    local.join(1, ScriptedParty(1))
    local.ask({1: Begin(PARAMETERS)})
    local.send({1: request_kind})
    assert cut.wait(HANG)
