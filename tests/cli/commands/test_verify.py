"""`dordis verify`: what it prints, and what it refuses in one line; docs/evidence.md shows its commands."""

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
