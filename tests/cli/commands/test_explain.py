"""`dordis explain`: a receipt in words, verified first."""

from dordis.records.run_records import RECEIPTS, REGISTRY
from tests.adversary.receipts import finished, job_of, registry_of
from tests.cli.in_process import dordis


def test_a_receipt_is_explained(tmp_path):
    registry_of(job_of()).save(tmp_path / REGISTRY)
    said = dordis("explain", finished()[0] / RECEIPTS / "000001.json", "--registry", tmp_path / REGISTRY).stdout
    assert "index 1" in said
    assert "signatures were verified" in said
    assert "Not proved by this receipt" in said


def test_an_altered_receipt_is_refused(tmp_path):
    data = (finished()[0] / RECEIPTS / "000001.json").read_bytes()
    (tmp_path / "000001.json").write_bytes(data.replace(b'"clients":[1,', b'"clients":[0,'))
    assert "names other clients" in dordis("explain", tmp_path / "000001.json").stderr
    assert "cannot read the receipt" in dordis("explain", tmp_path / "absent.json").stderr
