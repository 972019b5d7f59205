"""`dordis export`: one archive for an auditor, of a run that verifies."""

import json
import shutil
from pathlib import Path

from dordis.records.run_records import LEDGER, REGISTRY
from tests.adversary.receipts import finished, job_of, registry_of
from tests.cli.in_process import dordis


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


def test_what_is_missing_is_named(tmp_path):
    assert "there is no run at" in dordis("export", tmp_path / "absent", tmp_path / "audit.zip").stderr
    assert "end with .zip" in dordis("export", tmp_path / "absent", tmp_path / "audit").stderr
