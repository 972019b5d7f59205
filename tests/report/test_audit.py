"""An altered byte anywhere in an audit archive is found offline."""

import io
import shutil
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dordis.errors import DordisError, InputError, LedgerDamaged
from dordis.ledger.receipt import Receipt
from dordis.ledger.verification import verify_receipt
from dordis.records.run_records import LEDGER, MANIFEST, RECEIPTS, REGISTRY
from dordis.report import audit
from dordis.report.audit import CONTENTS, PAGE, REPORT, explain_receipt, pack_archive, read_archive, verify_archive
from tests.adversary.receipts import finished, job_of, registry_of

PROVED = (MANIFEST, LEDGER, REGISTRY, f"{RECEIPTS}/000000.json", f"{RECEIPTS}/000001.json")
"""Files whose every byte is bound by hashes and signatures, whatever the archive says of their hashes."""

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""An altered byte is no smaller for being shrunk."""
SHARED = (HealthCheck.function_scoped_fixture,)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive of a run against a malicious server, with the registry as a deployed server stores it."""
    folder = tmp_path_factory.mktemp("audit")
    run = Path(shutil.copytree(finished()[0], folder / "run"))
    registry_of(job_of()).save(run / REGISTRY)
    audit.write_archive(run, folder / "audit.zip")
    return folder / "audit.zip"


def test_an_archive_verifies_with_the_registry_of_an_auditor_and_with_its_own(archive):
    for registry in (registry_of(job_of()), None):
        verified = verify_archive(archive, registry)
        assert verified.signed_rounds == 2


def test_it_has_the_page_statement_settings_ledger_receipts_and_versions_and_no_secret(archive):
    names = set(read_archive(archive))
    assert {PAGE, REPORT, CONTENTS, "versions.json", "run/config.toml", "run/ledger.jsonl"} <= names
    assert not {name for name in names if name.endswith((".key", ".db", ".lock"))}
    page = read_archive(archive)[PAGE].decode()
    assert "What no check proves" in page
    assert "2 receipts" in page


def test_the_model_is_left_out(archive):
    with zipfile.ZipFile(io.BytesIO(read_archive(archive)["run/model.npz"])) as stored:
        assert stored.namelist() == ["lines.npy"]


@settings(max_examples=150, deadline=None, phases=PHASES, suppress_health_check=SHARED)
@given(data=st.data())
def test_an_altered_byte_anywhere_in_the_archive_is_found(archive, data, tmp_path_factory):
    original = archive.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    altered = bytearray(original)
    altered[place] ^= data.draw(st.integers(1, 255))
    forged = tmp_path_factory.getbasetemp() / "altered.zip"
    forged.write_bytes(altered)
    with pytest.raises(DordisError):
        verify_archive(forged)


@settings(max_examples=150, deadline=None, phases=PHASES, suppress_health_check=SHARED)
@given(data=st.data())
def test_an_altered_byte_of_any_file_is_found_and_named(archive, data, tmp_path_factory):
    members = read_archive(archive)
    name = data.draw(st.sampled_from(sorted(name for name in members if members[name])))
    altered = bytearray(members[name])
    altered[data.draw(st.integers(0, len(altered) - 1))] ^= data.draw(st.integers(1, 255))
    forged = tmp_path_factory.getbasetemp() / "altered-file.zip"
    forged.write_bytes(pack_archive(members | {name: bytes(altered)}))
    with pytest.raises(LedgerDamaged, match="was altered") as caught:
        verify_archive(forged)
    assert name in str(caught.value) or CONTENTS in str(caught.value)


@settings(max_examples=40, deadline=None, phases=PHASES, suppress_health_check=SHARED)
@given(data=st.data())
def test_whoever_also_rewrites_the_hashes_is_caught_by_the_evidence(archive, data, tmp_path_factory):
    members = read_archive(archive)
    name = f"run/{data.draw(st.sampled_from(PROVED))}"
    altered = bytearray(members[name])
    altered[data.draw(st.integers(0, len(altered) - 1))] ^= data.draw(st.integers(1, 255))
    contents = {key: value for key, value in members.items() if key != CONTENTS} | {name: bytes(altered)}
    forged = tmp_path_factory.getbasetemp() / "rehashed.zip"
    forged.write_bytes(pack_archive(contents | {CONTENTS: audit._hash_members(contents)}))
    with pytest.raises(DordisError):
        verify_archive(forged, registry_of(job_of()))


def test_a_removed_and_an_added_file_are_found(archive, tmp_path):
    members = read_archive(archive)
    for forged in (
        {name: data for name, data in members.items() if name != REPORT},
        members | {"extra.txt": b"more"},
        members | {"run/../../escaped.txt": b"more"},
    ):
        (tmp_path / "forged.zip").write_bytes(pack_archive(forged))
        with pytest.raises(LedgerDamaged):
            verify_archive(tmp_path / "forged.zip")
    assert not (tmp_path.parent / "escaped.txt").exists()


def test_an_archive_is_not_overwritten(archive):
    with pytest.raises(InputError, match="name a new file"):
        audit.write_archive(finished()[0], archive)


def test_the_same_run_gives_the_same_archive(tmp_path):
    first, second = (audit.write_archive(finished()[0], tmp_path / name) for name in ("a.zip", "b.zip"))
    assert first == second


def test_a_receipt_in_words_says_who_signed_and_what_is_not_proved(archive):
    receipt = Receipt.from_bytes(read_archive(archive)[f"run/{RECEIPTS}/000001.json"], "000001.json")
    signed = " ".join(explain_receipt(verify_receipt(receipt, registry_of(job_of()).signing_keys()), has_registry=True))
    assert "6 clients were in it" in signed
    assert "signatures were verified" in signed
    assert "Not proved" in signed
    bare = " ".join(explain_receipt(verify_receipt(receipt), has_registry=False))
    assert "were not verified: give --registry" in bare
