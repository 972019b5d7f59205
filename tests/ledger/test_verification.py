"""Receipts and runs are verified offline with the keys of a registry; tests/adversary/receipts.py tampers with them.

A run whose files contradict each other states no epsilon: not in a report, not when it is loaded or resumed.
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import dordis
from dordis.errors import InputError, LedgerDamaged
from dordis.identity.authority import new_request, read_request
from dordis.identity.certificates import new_tls_key
from dordis.identity.keys import Keys, PrivateKeys, load_keys
from dordis.identity.registry import registry_with_helpers
from dordis.ledger.receipt import read_receipt_files
from dordis.ledger.verification import check_evidence, check_model, members_at_start, verify_receipt, verify_run
from dordis.records import run_records
from dordis.records.run_records import RECEIPTS
from dordis.report.facts import read_facts
from dordis.report.statement import write_statement
from dordis.simulation.run import prepare
from tests.adversary.receipts import CLIENTS, job_of, registry_of
from tests.adversary.receipts import finished as signed_run
from tests.cli.in_process import dordis as command
from tests.ledger.charged_rounds import forge
from tests.runs.parties import authority_at, joined
from tests.simulation.whole_runs import settings_of


@pytest.fixture(scope="module")
def receipts():
    return read_receipt_files(signed_run()[0] / RECEIPTS)


def test_a_run_against_a_malicious_server_is_signed_in_every_round():
    verified = verify_run(run_records.load_run(signed_run()[0]), registry_of(job_of()))
    assert verified.signed_rounds == len(verified.receipts) == 2
    for one in verified.receipts:
        assert all(set(signers) <= set(range(1, CLIENTS + 1)) for signers in one.signers)
        assert min(map(len, one.signers)) >= one.parameters.quorum
    assert verified.summary.stated.epsilon == pytest.approx(4.0, rel=1e-3)


def test_without_a_registry_no_round_counts_as_signed():
    verified = verify_run(run_records.load_run(signed_run()[0]))
    assert (verified.signed_rounds, verified.has_registry) == (0, False)


def test_the_members_of_a_run_are_found_in_a_later_registry(tmp_path):
    """A client and a helper of the run are revoked later, another client has new keys, and one has joined."""
    authority = authority_at(tmp_path / "federation")
    for name in ("alice", "bob", "carol", "helper"):
        joined(authority, tmp_path / f"{name}.key")
    began = registry_with_helpers(authority.registry, [4])
    manifest = SimpleNamespace(members=began.fingerprints(), assistance=SimpleNamespace(helpers=(4,)))
    authority.revoke("bob", "left")
    authority.revoke("helper", "left")
    new = PrivateKeys(new_tls_key(), Keys.generate())
    authority.approve(read_request(new_request("carol", new, replaces=load_keys(tmp_path / "carol.key").keys)))
    joined(authority, tmp_path / "dave.key")
    assert authority.registry.registry.keys() == {1, 3, 5}
    found = members_at_start(authority.registry, manifest)
    assert found.root() == members_at_start(began, manifest).root() == began.root()
    assert found.signing_keys() == began.signing_keys()


def test_signatures_that_were_removed_are_missed(receipts):
    bare = msgspec.structs.replace(receipts[0], signatures=({},))
    assert not verify_receipt(bare).is_signed
    with pytest.raises(LedgerDamaged, match="quorum"):
        verify_receipt(bare, registry_of(job_of()).signing_keys())


def test_a_receipt_of_a_foreign_protocol_loads_nothing(receipts):
    with pytest.raises(InputError, match="does not come with dordis"):
        verify_receipt(msgspec.structs.replace(receipts[0], protocol="os:system"))


@pytest.mark.parametrize("mode", ["malicious", "semi-honest"])
@pytest.mark.parametrize("noise", ["xnoise", "orig", "local", "central", "none"])
def test_runs_of_every_noise_verify(noise: str, mode: str, tmp_path: Path):
    keys = (f"privacy.noise.kind={noise}", f"protocol.mode={mode}", "simulation.fidelity=ideal")
    under_way = prepare(settings_of(*keys)).start(tmp_path, "")
    under_way.complete()
    verified = verify_run(run_records.load_run(under_way.records.path))
    assert len(verified.receipts) == len(run_records.load_run(under_way.records.path).rounds) > 0
    assert (verified.summary is None) == (noise == "none")


IDEAL = "simulation.fidelity=ideal"
CONFIG = """\
[app]
server = "tests.simulation.toys:Server"
client = "tests.simulation.toys:Client"
[federation]
clients = 12
per_round = 6
rounds = 3
[simulation]
fidelity = "ideal"
dropout = { kind = "none" }
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three rounds, which no test may change."""
    return whole_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of that run, to be tampered with."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def whole_run(root: Path) -> Path:
    under_way = prepare(settings_of(IDEAL)).start(root, CONFIG)
    under_way.complete()
    return under_way.records.path


def cut(path: Path) -> None:
    ledger = path / run_records.LEDGER
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-2]))


def rehash(path: Path) -> None:
    """Leave out the last round, and hash everything anew, as a careful forger would."""
    forge(path / run_records.LEDGER, lambda entries: entries.__delitem__(slice(-2, None)))


def charged(entries):
    """Return the first charge."""
    return next(entry["charge"] for entry in entries if "charge" in entry)


def rehash_altered(path: Path) -> None:
    """Name other parameters, with all hashes right."""
    forge(path / run_records.LEDGER, lambda entries: charged(entries).update(parameters="ab" * 32))


def delete(path: Path) -> None:
    (path / run_records.LEDGER).unlink()


def delete_and_make_a_directory(path: Path) -> None:
    delete(path)
    (path / run_records.LEDGER).mkdir()


def lose_receipts(path: Path) -> None:
    shutil.rmtree(path / run_records.RECEIPTS)


def swap_ledger(path: Path) -> None:
    shutil.copy(whole_run(path.parent / "other") / run_records.LEDGER, path / run_records.LEDGER)


def swap_receipts(path: Path) -> None:
    other = whole_run(path.parent / "other")
    shutil.rmtree(path / run_records.RECEIPTS)
    shutil.copytree(other / run_records.RECEIPTS, path / run_records.RECEIPTS)


def swap_rounds(path: Path) -> None:
    lines = (path / run_records.ROUNDS).read_bytes().splitlines(keepends=True)
    record = json.loads(lines[1])
    record["clients"] = [u + 1 for u in record["clients"]]
    lines[1] = json.dumps(record).encode() + b"\n"
    (path / run_records.ROUNDS).write_bytes(b"".join(lines))


def cut_all_but_the_model(path: Path) -> None:
    cut(path)
    (path / run_records.RESULT).unlink()
    sorted((path / run_records.RECEIPTS).iterdir())[-1].unlink()
    lines = (path / run_records.ROUNDS).read_bytes().splitlines(keepends=True)
    (path / run_records.ROUNDS).write_bytes(b"".join(lines[:-1]))


TAMPERINGS = {
    cut: "it was cut",
    rehash: "hashed again",
    rehash_altered: "hashed again",
    delete: "there is no ledger",
    delete_and_make_a_directory: "cannot read the ledger",
    lose_receipts: "receipt of round 1 is missing",
    swap_ledger: "of another run",
    swap_receipts: "of another run or round",
    swap_rounds: "rounds.jsonl and the receipt disagree",
    cut_all_but_the_model: "not in the privacy ledger",
}


def test_a_whole_run_is_borne_out(run: Path) -> None:
    summary = check_evidence(run_records.load_run(run))
    assert summary is not None
    assert 0 < summary.epsilon == dordis.load(run).epsilon
    assert dordis.load(run).problem == ""
    shown = command("ledger", "verify", run)
    assert shown.returncode == 0, shown.stderr
    assert "simulated in one process" in shown.stdout
    assert "simulated" in json.loads(command("ledger", "verify", run / run_records.LEDGER, "--json").stdout)["run_as"]


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_tampering_leaves_no_epsilon_and_one_line_says_why(run: Path, tamper: Callable[[Path], None]) -> None:
    tamper(run)
    reason = TAMPERINGS[tamper]
    with pytest.raises(LedgerDamaged, match=reason):
        check_evidence(run_records.load_run(run))
    loaded = dordis.load(run)
    assert loaded.epsilon is None
    assert reason in loaded.problem
    assert not any("epsilon" in line for line in loaded.history)
    (facts,) = read_facts([run])
    assert facts.reportable_epsilon is facts.spent is None
    assert "no epsilon can be stated" in write_statement(facts).headline
    with pytest.raises(LedgerDamaged, match=reason):
        prepare(settings_of(IDEAL)).resume(run)


@pytest.mark.parametrize("tamper", [rehash, delete], ids=lambda tamper: tamper.__name__)
def test_the_command_refuses_in_one_line(run: Path, tamper: Callable[[Path], None]) -> None:
    tamper(run)
    for refused in (partial(command, "ledger", "verify", run), partial(command, "run", "--resume", run)):
        shown = refused()
        assert (shown.returncode, shown.stderr.count("\n")) == (2, 1), shown.stderr
        assert TAMPERINGS[tamper] in shown.stderr


def test_a_finished_run_without_its_model_does_not_start_again(run: Path) -> None:
    (run / run_records.MODEL).unlink()
    with pytest.raises(LedgerDamaged, match=r"no model\.npz"):
        check_model(run_records.load_run(run))
    with pytest.raises(LedgerDamaged, match=r"no model\.npz"):
        prepare(settings_of(IDEAL)).resume(run)


@pytest.mark.parametrize("order", [[0, 2, 1], [0, 1, 2, 2], [0, 2], [1, 2]], ids=str)
def test_lines_that_were_moved_doubled_or_left_out_show(run: Path, order: list[int]) -> None:
    lines = (run / run_records.ROUNDS).read_bytes().splitlines(keepends=True)
    (run / run_records.ROUNDS).write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(LedgerDamaged, match="every round once, in order"):
        check_evidence(run_records.load_run(run))
    loaded = dordis.load(run)
    assert loaded.epsilon is None
    assert "every round once, in order" in loaded.problem


@pytest.mark.parametrize("rounds", [3, 1])
def test_the_model_of_another_run_shows(run: Path, rounds: int) -> None:
    other = prepare(settings_of(IDEAL, f"federation.rounds={rounds}")).start(run.parent / "other", CONFIG)
    other.complete()
    shutil.copy(other.records.path / run_records.MODEL, run / run_records.MODEL)
    with pytest.raises(LedgerDamaged, match="every round once"):
        check_evidence(run_records.load_run(run))
    with pytest.raises(LedgerDamaged, match="every round once"):
        prepare(settings_of(IDEAL)).resume(run)
    assert "every round once" in dordis.load(run).problem


def test_the_model_of_an_earlier_round_shows(run: Path) -> None:
    lines = {
        name: (run / name).read_bytes().splitlines(keepends=True)[0]
        for name in (run_records.ROUNDS, run_records.METRICS)
    }
    run_records.write_checkpoint(run / run_records.MODEL, lines, run_records.read_state(run / run_records.MODEL))
    assert "not the one after its last round" in dordis.load(run).problem
    (run / run_records.RESULT).unlink()
    with pytest.raises(LedgerDamaged, match="not the one after its last round"):
        prepare(settings_of(IDEAL)).resume(run)


def test_loading_a_run_writes_nothing(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    dordis.load(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_without_its_model_is_not_loaded_as_if_it_had_learnt_nothing(run: Path) -> None:
    (run / run_records.MODEL).unlink()
    with pytest.raises(LedgerDamaged, match=r"no model\.npz"):
        dordis.load(run)


def test_a_run_that_was_interrupted_in_its_first_round_goes_on(tmp_path: Path) -> None:
    job = prepare(settings_of(IDEAL))
    under_way = job.start(tmp_path, CONFIG)

    def interrupt(stage: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        under_way.complete(interrupt)
    path = under_way.records.path
    loaded = dordis.load(path)
    assert (loaded.stopped, loaded.history, loaded.metrics) == ("interrupted", (), {})
    assert prepare(settings_of(IDEAL)).resume(path).complete().rounds == 3


def test_a_run_stopped_before_its_line_was_written_goes_on(run: Path) -> None:
    lines = (run / run_records.ROUNDS).read_bytes().splitlines(keepends=True)
    (run / run_records.ROUNDS).write_bytes(b"".join(lines[:-1]))
    assert check_evidence(run_records.load_run(run)) is not None
    assert len(run_records.load_run(run).rounds) == len(lines)
