"""Downloads: offers are counted, and a client has few transfers at once."""

import pytest

from dordis.network import upload_endpoint
from dordis.network.downloads import DownloadEndpoint
from dordis.network.sessions import AccessTokens
from dordis.network.upload_endpoint import TransferSlots
from tests.network.raw_client import log_in, read_status, send_request

pytestmark = pytest.mark.network


def test_a_body_offered_twice_is_found_until_it_is_withdrawn_twice():
    downloads, data = DownloadEndpoint(AccessTokens(), TransferSlots()), bytes(range(256))
    info = downloads.offer(data)
    assert downloads.offer(bytearray(data)) == info
    downloads.withdraw(info.digest)
    assert downloads.find(info.digest) == data
    downloads.withdraw(info.digest)
    assert downloads.find(info.digest) is None


def test_a_client_has_few_transfers_at_once(challenging):
    token = log_in(challenging)
    digest = challenging.server.downloads.offer(bytes(32 << 20)).digest.hex()
    slow = [send_request(challenging, "GET", f"/blobs/{digest}", token) for _ in range(upload_endpoint.MOST_TRANSFERS)]
    for connection in slow:
        assert connection.recv(12) == b"HTTP/1.1 200"  # and reads no more
    assert read_status(send_request(challenging, "GET", f"/blobs/{digest}", token)) == 503
    for connection in slow:
        connection.close()
