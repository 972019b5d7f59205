"""`dordis verify`, `explain` and `export`: what they print and refuse; docs/evidence.md shows their commands."""

import json
import shutil
from pathlib import Path

import pytest

from dordis.records.run_records import LEDGER, RECEIPTS, REGISTRY
from tests.adversary.receipts import finished, job_of, registry_of
from tests.cli.in_process import dordis
from tests.network.local_server import enrol


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run against a malicious server, and beside it the registry of an auditor."""
    folder = tmp_path_factory.mktemp("verified")
    registry_of(job_of()).save(folder / REGISTRY)
    return Path(shutil.copytree(finished()[0], folder / "run"))


def test_a_run_verifies_with_the_registry_of_an_auditor(run):
    shown = dordis("verify", run, "--registry", run.parent / REGISTRY)
    assert shown.returncode == 0
    assert "2 of 2, with the keys of the given registry" in shown.stdout
    told = json.loads(dordis("verify", run, "--registry", run.parent / REGISTRY, "--json").stdout)
    assert (told["rounds"], told["signed"], told["registry"]) == (2, 2, "given")


def test_without_a_registry_it_says_that_signatures_were_not_verified(run):
    assert "not verified: give --registry" in dordis("verify", run).stdout
    assert "not verified" in dordis("verify", run / RECEIPTS / "000000.json").stdout


def test_a_receipt_verifies_by_itself(run):
    receipt = run / RECEIPTS / "000001.json"
    told = json.loads(dordis("verify", receipt, "--registry", run.parent / REGISTRY, "--json").stdout)
    assert (told["index"], told["clients"], told["signed"]) == (1, 6, True)


def test_a_damaged_run_is_refused(run, tmp_path):
    damaged = Path(shutil.copytree(run, tmp_path / "run"))
    (damaged / LEDGER).write_bytes((damaged / LEDGER).read_bytes()[:-100])
    assert dordis("verify", damaged).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("verify", "absent"), "cannot read the receipt absent"),
        (("verify", "absent.zip"), "cannot read the audit archive absent.zip"),
        (("verify", "."), "there is no run at"),
    ],
)
def test_what_is_missing_is_named(arguments, reason, tmp_path):
    refused = dordis(*arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert reason in refused.stderr


def test_a_signed_registry_needs_the_certificate_of_its_authority(run, tmp_path):
    folder = enrol(tmp_path, 1)
    refused = dordis("verify", run, "--registry", folder / "registry.json")
    assert "--authority ca.pem" in refused.stderr
    other = dordis(
        "verify", run, "--registry", folder / "registry.json", "--authority", folder / "authority" / "ca.pem"
    )
    assert "names another registry" in other.stderr


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


def test_an_exported_archive_verifies_anywhere_and_an_altered_one_does_not(tmp_path):
    told = json.loads(dordis("export", finished()[0], tmp_path / "audit.zip", "--json").stdout)
    assert len(told["sha256"]) == 64
    registry_of(job_of()).save(tmp_path / REGISTRY)
    assert dordis("verify", tmp_path / "audit.zip", "--registry", tmp_path / REGISTRY).returncode == 0
    data = bytearray((tmp_path / "audit.zip").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "audit.zip").write_bytes(data)
    refused = dordis("verify", tmp_path / "audit.zip")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_a_damaged_run_is_not_exported(tmp_path):
    damaged = Path(shutil.copytree(finished()[0], tmp_path / "run"))
    (damaged / LEDGER).write_bytes((damaged / LEDGER).read_bytes()[:-100])
    assert dordis("export", damaged, tmp_path / "audit.zip").returncode == 2
    assert not (tmp_path / "audit.zip").exists()


def test_an_export_names_what_is_missing(tmp_path):
    assert "there is no run at" in dordis("export", tmp_path / "absent", tmp_path / "audit.zip").stderr
    assert "end with .zip" in dordis("export", tmp_path / "absent", tmp_path / "audit").stderr
