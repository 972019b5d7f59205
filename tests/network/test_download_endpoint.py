"""Downloads are counted offers, a client has few transfers at once, and interrupted contributions resume."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from msgspec.structs import replace

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.network import upload_endpoint
from dordis.network.download_endpoint import (
    LARGEST_FRAME,
    DownloadEndpoint,
    ReceiptEndpoint,
    SpooledUpload,
    SpooledUploads,
    decode_history,
)
from dordis.network.sessions import AccessTokens
from dordis.network.upload_endpoint import TransferSlots
from dordis.owner.directory import ClientDirectory
from dordis.protocols.plaintext import Contribution
from dordis.records.run_records import RECEIPTS
from tests.adversary.directories import rewrite_receipts
from tests.adversary.receipts import doubled, finished
from tests.cli.in_process import dordis
from tests.network.deployed_run import DeployedRun
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


def test_a_client_is_shown_the_receipts_of_its_rounds_whole_and_of_others_the_hash():
    endpoint = ReceiptEndpoint(lambda request: 1, finished()[0] / RECEIPTS)
    mine, others = endpoint.history(1), endpoint.history(99)
    assert [entry.index for entry in mine] == [0, 1]
    assert all(entry.receipt.digest == entry.digest for entry in mine)
    assert [entry.digest for entry in others] == [entry.digest for entry in mine]
    assert all(entry.receipt is None for entry in others)
    assert [entry.index for entry in endpoint.history(1, after=0)] == [1]


def test_receipts_that_a_client_has_are_shown_by_their_hash():
    endpoint = ReceiptEndpoint(lambda request: 1, finished()[0] / RECEIPTS)
    whole, known = endpoint.history(1), endpoint.history(1, known=0)
    assert [entry.digest for entry in known] == [entry.digest for entry in whole]
    assert [entry.receipt is None for entry in known] == [True, False]


def test_receipts_that_come_later_are_shown(tmp_path):
    endpoint = ReceiptEndpoint(lambda request: 1, tmp_path / RECEIPTS)
    assert endpoint.history(1) == []
    for count, name in enumerate(("000000.json", "000001.json"), 1):
        (tmp_path / RECEIPTS).mkdir(exist_ok=True)
        (tmp_path / RECEIPTS / name).write_bytes((finished()[0] / RECEIPTS / name).read_bytes())
        endpoint._changed = -1  # two changes within one tick of the clock
        assert len(endpoint.history(1)) == count


def test_the_newest_receipt_is_read_once_for_all_clients(monkeypatch):
    endpoint, reads = ReceiptEndpoint(lambda request: 1, finished()[0] / RECEIPTS), []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path.name) or read(path))

    async def ask(clients):
        request = make_mocked_request("GET", "/receipts?after=0&known=0")
        return await asyncio.gather(*(endpoint.encode(client, request) for client in clients))

    answers = [decode_history(answer) for answer in asyncio.run(ask([1, 2, 99]))]
    assert answers == [endpoint.history(client, 0, 0) for client in (1, 2, 99)]
    assert [shown[0].receipt is None for shown in answers] == [False, False, True]
    assert reads == ["000000.json", "000001.json"]


@pytest.mark.network
@pytest.mark.slow
def test_clients_refuse_a_restarted_server_that_rewrote_their_round(processes, tmp_path):
    """The rewritten receipt has valid signatures and hashes, and the server resumes the run without a complaint."""
    fleet = DeployedRun(processes, tmp_path, 5, ["federation.rounds=3", "deployment.wait=600"])
    fleet.serve(only=2)
    fleet.join_missing()
    assert fleet.end() == 0
    kept = ClientDirectory(fleet.folder / "c1.state").receipts
    run = fleet.stored().id
    assert sorted(kept.read(run).attended) == sorted(kept.read(run).delivered) == [0, 1]
    assert 0 in kept.read(run).shown
    assert dordis("verify", fleet.run, "--kept", kept.file(run)).returncode == 0

    rewrite_receipts(fleet.run, lambda one: replace(one, left=doubled(one.left)))
    told = json.loads(dordis("verify", fleet.run, "--json").stdout)
    assert told["signed"] == 2
    assert "was replaced" in dordis("verify", fleet.run, "--kept", kept.file(run)).stderr
    fleet.serve(resume=fleet.run)
    fleet.join(1)
    assert processes.wait(fleet.clients[1]) != 0
    assert "contradicts what this client kept" in (fleet.folder / "c1.log").read_text()
    fleet.stop()
