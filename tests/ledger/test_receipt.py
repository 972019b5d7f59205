"""A receipt has one form and a file of its own name, and names the receipt before it."""

import shutil

import pytest

from dordis.errors import LedgerDamaged
from dordis.ledger.receipt import FIRST, Receipt, last_digest, read_receipt_files
from dordis.records.run_records import RECEIPTS
from tests.adversary.receipts import finished


@pytest.fixture(scope="module")
def receipts():
    return read_receipt_files(finished()[0] / RECEIPTS)


def test_receipts_follow_each_other(receipts):
    assert receipts[0].previous == FIRST
    assert receipts[1].previous == receipts[0].digest
    assert last_digest(finished()[0] / RECEIPTS) == receipts[1].digest


@pytest.mark.parametrize("open_round", [None, 1])
def test_a_foreign_file_among_the_receipts_is_named(tmp_path, open_round):
    shutil.copytree(finished()[0] / RECEIPTS, tmp_path / RECEIPTS)
    (tmp_path / RECEIPTS / "notes.json").write_text("{}")
    with pytest.raises(LedgerDamaged, match=r"notes\.json"):
        last_digest(tmp_path / RECEIPTS, open_round)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 100_000], ids=["empty", "fields", "text", "deep"])
def test_other_bytes_are_no_receipt(data):
    with pytest.raises(LedgerDamaged, match="not what dordis wrote"):
        Receipt.from_bytes(data, "000000.json")


def test_a_receipt_has_one_form(receipts):
    with pytest.raises(LedgerDamaged, match="not what dordis wrote"):
        Receipt.from_bytes(receipts[0].to_bytes().replace(b'"index":0', b'"index": 0'), "000000.json")


def test_a_receipt_under_the_name_of_another_round_is_refused(tmp_path):
    shutil.copy(finished()[0] / RECEIPTS / "000000.json", tmp_path / "000007.json")
    with pytest.raises(LedgerDamaged, match=r"000007.json is of another run or round"):
        read_receipt_files(tmp_path)
