"""`dordis ledger verify`: what it shows of a ledger, and that it refuses one that is damaged or overspent."""

import json
from fractions import Fraction
from functools import partial
from pathlib import Path

import msgspec
import pytest

from dordis.ledger.client_spending import Account
from dordis.ledger.ledger import Budget, Charge, Ledger, verify_ledger
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.baselines import CentralGaussian
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.encoded_sums import encoding_of
from tests.cli.in_process import dordis
from tests.ledger.charged_rounds import DELTA, charge_of, ended, parameters_of
from tests.runs.cohorts import OTHER_RUN, RUN

run = partial(dordis, "ledger", "verify")


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
    shown = run(path)
    assert shown.returncode == 0, shown.stderr
    summary = verify_ledger(path)
    for expected in ("the ledger is whole", RUN.hex(), summary.head, "10 of 11 clients", "outside the guarantee"):
        assert expected in shown.stdout
    assert "6, 1e-05" in shown.stdout
    assert "the manifest of the run is missing" in shown.stdout
    assert f"{summary.epsilon:.4g}" in shown.stdout


def test_json_is_one_object_with_every_client(path: Path) -> None:
    found, summary = json.loads(run(path, "--json").stdout), verify_ledger(path)
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
    shown = run(where)
    assert shown.returncode == 0, shown.stderr
    assert "central-gaussian" in shown.stdout
    assert "trusted with the sum" in shown.stdout
    assert "against the server" not in shown.stdout
    assert json.loads(run(where, "--json").stdout)["mechanisms"] == ["central-gaussian"]


def test_the_run_and_a_line_can_be_asked_for(path: Path) -> None:
    assert run(path, "--run", RUN.hex(), "--head", verify_ledger(path).head).returncode == 0


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
    shown = run(path, *arguments)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert reason in shown.stderr


def test_a_damaged_ledger_is_refused_in_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"l2_squared":400', b'"l2_squared":300', 1))
    shown = run(path)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert "line 2 of the privacy ledger was altered" in shown.stderr


def test_a_line_cut_by_a_crash_is_refused_with_what_to_do(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"kind":"reser')
    shown = run(path)
    assert shown.returncode == 2
    assert f"truncate -s {size}" in shown.stderr


def test_a_run_stands_for_its_ledger(path: Path) -> None:
    assert run(path.parent).stdout == run(path).stdout != ""


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    shown = run(tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert "cannot read the ledger" in shown.stderr


def test_no_ledger_at_all_is_refused_in_one_line(tmp_path: Path) -> None:
    shown = run(tmp_path / "ledger.jsonl")
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    assert "no ledger" in shown.stderr


def test_an_overspent_ledger_is_refused_after_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(where, RUN, Budget(0.01, DELTA))
    monkeypatch.setattr(Account, "check_budget", lambda *_: None)
    ledger.reserve(charge_of())
    shown = run(where, "--json")
    assert (shown.returncode, shown.stderr.count("\n")) == (3, 1)
    assert json.loads(shown.stdout)["epsilon"] > 0.01
    assert "the budget is 0.01" in shown.stderr
