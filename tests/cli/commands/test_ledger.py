"""Evidence of a run: `dordis ledger`, `verify`, `explain` and `export`, as docs/evidence.md shows them."""

import json
import shutil
from fractions import Fraction
from functools import partial
from pathlib import Path

import msgspec
import pytest

from dordis.ledger.client_spending import Account
from dordis.ledger.ledger import Budget, Charge, Ledger, verify_ledger
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.encoded_sums import encoding_of
from dordis.records.run_records import LEDGER, RECEIPTS, REGISTRY
from tests.adversary.receipts import finished, job_of, registry_of
from tests.cli.in_process import dordis
from tests.ledger.charged_rounds import DELTA, charge_of, ended, parameters_of
from tests.network.local_server import enrol
from tests.runs.cohorts import OTHER_RUN, RUN

verify = partial(dordis, "ledger", "verify")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    where = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(where, RUN, Budget(6.0, DELTA))
    first = parameters_of(0)
    ledger.reserve(Charge.from_parameters(first))
    ledger.complete(0, ended(first, {1}, {1}))
    ledger.reserve(charge_of(1, clients=range(5, 11)))
    return where


def test_the_tables_show_the_run_and_who_has_spent_most(path: Path) -> None:
    shown = verify(path)
    assert shown.returncode == 0, shown.stderr
    summary = verify_ledger(path)
    for expected in ("the ledger is whole", RUN.hex(), summary.head, "10 of 11 clients", "outside the guarantee"):
        assert expected in shown.stdout
    assert "6, 1e-05" in shown.stdout
    assert "the manifest of the run is missing" in shown.stdout
    assert f"{summary.epsilon:.4g}" in shown.stdout


def test_json_is_one_object_with_every_client(path: Path) -> None:
    found, summary = json.loads(verify(path, "--json").stdout), verify_ledger(path)
    assert found["clients"] == {str(u): spent for u, spent in summary.clients.items()}
    assert (found["spent"], found["worst"], found["budget"], found["delta"]) == (summary.epsilon, 5, 6.0, DELTA)
    assert found["epsilon"] == 6.0
    assert (found["lines"], found["completed"], found["reserved"]) == (4, 1, 1)
    assert found["clients"]["1"] == 0.0 < found["clients"]["0"] < found["clients"]["5"]


def test_a_trusted_server_is_named_as_such(tmp_path: Path) -> None:
    where = tmp_path / "ledger.jsonl"
    central = CentralGaussian(Grid(64, 32, 16.0, 20), clip=1.0, sensitivity=400, sigma=3.0)
    parameters = msgspec.structs.replace(
        parameters_of(scheme=Scheme.NONE, variances=[Fraction(0)] * 2), encoding=encoding_of(central, bytes(32))
    )
    Ledger.create(where, RUN, Budget(None, DELTA)).reserve(Charge.from_parameters(parameters, mechanism=central))
    shown = verify(where)
    assert shown.returncode == 0, shown.stderr
    assert "central-gaussian" in shown.stdout
    assert "trusted with the sum" in shown.stdout
    assert "against the server" not in shown.stdout
    assert json.loads(verify(where, "--json").stdout)["mechanisms"] == ["central-gaussian"]


def test_the_run_and_a_line_can_be_asked_for(path: Path) -> None:
    assert verify(path, "--run", RUN.hex(), "--head", verify_ledger(path).head).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--run", OTHER_RUN.hex()), "another run"),
        (("--run", "xyz"), "hex"),
        (("--head", "0" * 64), "is missing"),
    ],
)
def test_another_ledger_than_expected_is_refused_in_one_line(
    path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    shown = verify(path, *arguments)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert reason in shown.stderr


def test_a_damaged_ledger_is_refused_in_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"l2_squared":400', b'"l2_squared":300', 1))
    shown = verify(path)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert "line 2 of the privacy ledger was altered" in shown.stderr


def test_a_line_cut_by_a_crash_is_refused_with_what_to_do(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"kind":"reser')
    shown = verify(path)
    assert shown.returncode == 2
    assert f"truncate -s {size}" in shown.stderr


def test_a_run_stands_for_its_ledger(path: Path) -> None:
    assert verify(path.parent).stdout == verify(path).stdout != ""


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    shown = verify(tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert "cannot read the ledger" in shown.stderr


def test_no_ledger_at_all_is_refused_in_one_line(tmp_path: Path) -> None:
    shown = verify(tmp_path / "ledger.jsonl")
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    assert "no ledger" in shown.stderr


def test_an_overspent_ledger_is_refused_after_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(where, RUN, Budget(0.01, DELTA))
    monkeypatch.setattr(Account, "check_budget", lambda *_: None)
    ledger.reserve(charge_of())
    shown = verify(where, "--json")
    assert (shown.returncode, shown.stderr.count("\n")) == (3, 1)
    assert json.loads(shown.stdout)["epsilon"] > 0.01
    assert "the budget is 0.01" in shown.stderr


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
