"""Downloads are counted offers, a client has few transfers at once, and interrupted contributions resume."""

import pytest

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.network import upload_endpoint
from dordis.network.server_transfers import LARGEST_FRAME, DownloadEndpoint, SpooledUpload, SpooledUploads
from dordis.network.sessions import AccessTokens
from dordis.network.upload_endpoint import TransferSlots
from dordis.protocols.plaintext import Contribution
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


def test_a_whole_contribution_is_read():
    frame = wire.encode(Contribution(1, b""))
    upload = SpooledUpload(0)
    upload.file.write(len(frame).to_bytes(4, "big") + frame + b"vector")
    assert upload.read(Contribution) == (frame, Contribution(1, b"vector"))
    upload.file.close()


def test_a_frame_that_is_too_long_is_malformed():
    upload = SpooledUpload(0)
    upload.file.write((LARGEST_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(MalformedMessage, match="more than"):
        upload.read(Contribution)
    upload.file.close()


def test_of_many_uploads_that_broke_off_the_latest_are_kept():
    uploads = SpooledUploads(most=3)
    begun = {u: uploads.begin(u, 10) for u in range(10)}
    assert [u for u, upload in begun.items() if not upload.file.closed] == [7, 8, 9]
    assert [u for u in begun if uploads.get(u)] == [7, 8, 9]
    uploads.clear()
    assert all(upload.file.closed for upload in begun.values())


def test_an_upload_under_way_is_not_dropped_for_another_one():
    uploads = SpooledUploads(most=1)
    first = uploads.begin(1, 10)
    first.is_receiving = True
    for u in range(2, 9):
        uploads.begin(u, 10)
    assert uploads.get(1) is first
    uploads.clear()  # the round is over, and the rest still comes
    assert (uploads.get(1), first.file.closed) == (None, False)
    first.is_receiving = False
    uploads.close_forgotten(1, first)
    assert first.file.closed


def test_an_upload_that_begins_again_takes_the_place_of_the_one_before():
    uploads = SpooledUploads()
    first, second = uploads.begin(1, 10), uploads.begin(1, 20)
    assert first.file.closed
    uploads.take(1, first)
    assert uploads.get(1) is second
    uploads.take(1, second)
    assert uploads.get(1) is None
    assert not second.file.closed
    second.file.close()
