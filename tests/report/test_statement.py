"""The privacy statement: true of every noise strategy, mode and fidelity, and loud where something is wrong."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dordis.crypto.suite import RoundSize, security_bits
from dordis.privacy.accounting import ParticipationSchedule
from dordis.records.manifest import DEPLOYED
from dordis.report.facts import Level, RunFacts, find_alerts, read_facts
from dordis.report.statement import Statement, write_statement
from dordis.runs.retry import TRIES
from tests.case_samples import sample_cases
from tests.report.runs import PER_ROUND, STRATEGIES, Kind, make

PROVING = [noise for noise in STRATEGIES if noise not in ("none", "rebasing")]


def facts_of(path: Path) -> RunFacts:
    return read_facts([path])[0]


def said(stated: Statement) -> str:
    return " ".join([stated.headline, *(text for item in stated.items for text in (*item.paragraphs, *item.points))])


def words(path: Path) -> str:
    return said(write_statement(facts_of(path)))


def warned(path: Path, level: Level) -> str:
    return " ".join(alert.text for alert in find_alerts(facts_of(path)) if alert.level is level)


@pytest.mark.parametrize("noise", sample_cases([*PROVING], one_in=3))
def test_every_proof_comes_with_unit_adjacency_accountant_cap_and_limits(tmp_path: Path, noise: str) -> None:
    text = words(make(tmp_path, noise=noise))
    for expected in (
        "One client",
        "replaced by zero",
        "delta = 1e-05",
        "Gaussian differential privacy",
        "covers 2 participations",
        "refuses to take part more often, or to spend more, than its owner allows",
        "Dropout that depends on a client's data",
        "The metrics in this report",
        f"Noise strategy '{noise}",
    ):
        assert expected in text
    against = (
        "against everybody but the server" if noise == "central" else "against the server, who knows who takes part"
    )
    for term in (*ParticipationSchedule(500, 50, 20).terms()[::2], against):
        assert term in text


@pytest.mark.parametrize("noise", ["none", "rebasing"])
def test_where_nothing_is_proved_no_epsilon_is_shown_whatever_is_recorded(tmp_path: Path, noise: str) -> None:
    path = make(tmp_path, noise=noise)
    facts = facts_of(path)
    stated = write_statement(facts)
    assert (facts.reportable_epsilon, facts.spent, stated.proves) == (None, None, False)
    assert stated.headline == "This run proves nothing about privacy."
    assert "epsilon =" not in said(stated)
    assert warned(path, Level.WARNING)


def test_rebasing_is_for_its_cost_only(tmp_path: Path) -> None:
    assert "Rebasing is simulated for its cost only" in words(make(tmp_path, noise="rebasing"))


def test_xnoise_states_its_tolerance_and_that_the_target_was_kept(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert facts_of(path).rounds_short_of_noise == 0
    assert min(facts_of(path).noise_ratios) >= 1
    text = words(path)
    assert "(scheme 'single')" in text
    assert "up to 19 clients of a round lost before their upload" in text
    assert "ends without an output" in text


def test_orig_that_overspends_says_so_everywhere(tmp_path: Path) -> None:
    path = make(tmp_path, noise="orig")
    stated = write_statement(facts_of(path))
    assert "more than its budget of 6" in stated.headline
    assert "MORE than the budget" in said(stated)
    assert "Nothing stops this run at its budget" in said(stated)
    assert "overspent" in warned(path, Level.BAD)
    assert "noise that epsilon is based on was below its target" in warned(path, Level.WARNING)


def test_orig_without_dropout_is_not_called_overspent(tmp_path: Path) -> None:
    path = make(tmp_path, noise="orig", dropout=0)
    assert not facts_of(path).is_overspent
    assert not warned(path, Level.BAD)


def test_conservative_names_what_it_provides_for(tmp_path: Path) -> None:
    assert "as if 0.2 of the clients dropped out" in words(make(tmp_path, noise="conservative"))


def test_central_trusts_the_server_and_local_nobody(tmp_path: Path) -> None:
    central, local = make(tmp_path, name="c", noise="central"), make(tmp_path, name="l", noise="local")
    assert "everyone but the server, which is trusted" in words(central)
    assert "trusts the server" in warned(central, Level.WARNING)
    assert "The server and all other clients together" in words(local)
    assert "trusts the server" not in warned(local, Level.WARNING)
    for path in (central, local):
        assert "not to be deployed" in words(path)


@pytest.mark.parametrize(
    ("mode", "expected", "not_expected"),
    [
        ("malicious", "even if it deviates from the protocol in any way", "as long as it follows"),
        ("semi-honest", "as long as it follows the protocol", "even if it deviates"),
        ("other", "which this report does not know", "even if it deviates"),
    ],
)
def test_the_adversary_is_that_of_the_mode(tmp_path: Path, mode: str, expected: str, not_expected: str) -> None:
    text = words(make(tmp_path, mode=mode, colluders=2))
    assert expected in text
    assert not_expected not in text
    assert "up to 2 clients of a round" in text


def test_without_a_beacon_the_bound_is_on_the_colluders_of_the_whole_registry(tmp_path: Path) -> None:
    text = words(make(tmp_path, colluders=2, all_colluders=2))
    assert "up to 2 colluding clients of the 500 registered ones" in text
    assert "a round with all 2 colluders of the registry;" in text
    assert "2^64 manifests" not in text


def test_with_a_beacon_the_colluders_of_a_round_are_a_quantile(tmp_path: Path) -> None:
    text = words(make(tmp_path, colluders=2, all_colluders=9, beacon="published.txt"))
    assert "up to 9 colluding clients of the 500 registered ones" in text
    assert "At most 2 of these are in one round" in text
    assert "holds for a server that tries 2^64 manifests" in text
    semi_honest = words(make(tmp_path / "other", colluders=2, all_colluders=9, beacon="p.txt", mode="semi-honest"))
    assert "2^64 manifests" not in semi_honest


def test_no_colluders_are_not_passed_over(tmp_path: Path) -> None:
    assert "it knows its own noise" in words(make(tmp_path, colluders=0))


def test_shared_noise_without_secure_aggregation_proves_nothing_against_the_server(tmp_path: Path) -> None:
    path = make(tmp_path, protocol="plaintext")
    assert "Against the server nothing is proved" in warned(path, Level.BAD)
    assert "not against the server" in write_statement(facts_of(path)).headline


@pytest.mark.parametrize("noise", sample_cases([*STRATEGIES], one_in=4))
def test_a_run_in_plaintext_protects_nobody_whatever_the_noise(tmp_path: Path, noise: str) -> None:
    path = make(tmp_path, protocol="plaintext", noise=noise)
    said = "protects nobody: the server sees every update"
    assert said in warned(path, Level.BAD)
    assert said in write_statement(facts_of(path)).headline
    assert said in words(path)
    assert said not in words(make(tmp_path / "masked", noise=noise))


@pytest.mark.parametrize("fidelity", ["ideal", "full"])
def test_a_simulation_protected_nobody(tmp_path: Path, fidelity: str) -> None:
    path = make(tmp_path, fidelity=fidelity)
    assert write_statement(facts_of(path)).headline.startswith("A deployment like this simulation would be")
    assert "this run itself protected nobody" in words(path)
    assert "Simulated in one process" in warned(path, Level.WARNING)
    assert ("the protocol was not run" in words(path)) == (fidelity == "ideal")


def test_only_a_deployed_run_is_private_itself(tmp_path: Path) -> None:
    path = make(tmp_path, fidelity=DEPLOYED)
    assert write_statement(facts_of(path)).headline.startswith("This run is (epsilon")
    assert "imulat" not in words(path) + warned(path, Level.WARNING)


def test_a_deleted_ledger_leaves_no_claim_either(tmp_path: Path) -> None:
    path = make(tmp_path)
    (path / "ledger.jsonl").unlink()
    stated = write_statement(facts_of(path))
    assert not stated.proves
    assert "does not verify" in stated.headline
    assert "there is no ledger" in warned(path, Level.BAD)


def test_a_damaged_ledger_leaves_no_claim(tmp_path: Path) -> None:
    path = make(tmp_path)
    where = path / "ledger.jsonl"
    where.write_bytes(where.read_bytes().replace(b'"dim":64', b'"dim":63', 1))
    stated = write_statement(facts_of(path))
    assert not stated.proves
    assert "does not verify" in stated.headline
    assert "line 2 of the privacy ledger was altered" in warned(path, Level.BAD)


def test_the_ledger_of_another_run_is_none(tmp_path: Path) -> None:
    path, other = make(tmp_path, name="a"), make(tmp_path, name="b")
    (other / "ledger.jsonl").replace(path / "ledger.jsonl")
    assert "of another run" in warned(path, Level.BAD)


def test_a_run_without_its_ledger_claims_nothing(tmp_path: Path) -> None:
    path = make(tmp_path)
    (path / "ledger.jsonl").unlink()
    assert "no epsilon can be stated" in write_statement(facts_of(path)).headline
    assert "there is no ledger" in warned(path, Level.BAD)
    assert not write_statement(facts_of(path)).proves


@pytest.mark.slow
def test_more_participations_than_planned_are_noticed(tmp_path: Path) -> None:
    path = make(tmp_path, rounds=40, planned=20)
    assert "took part 4 times, and the plan covers 2" in warned(path, Level.WARNING)


@pytest.mark.parametrize("stopped", ["rounds", "budget", "failed", "interrupted", None])
@pytest.mark.parametrize("rounds", sample_cases([20, 19], one_in=2))
def test_a_run_that_did_not_finish_states_its_budget_whatever_its_result_says(
    tmp_path: Path, stopped: str | None, rounds: int
) -> None:
    path, early = make(tmp_path, stopped=stopped, rounds=rounds), rounds < 20
    facts = facts_of(path)
    assert facts.spent is not None
    assert facts.spent < 6.0
    assert facts.reportable_epsilon == (6.0 if early else facts.spent)
    text = words(path)
    assert ("somebody may have ended it because of its results" in text) is early
    assert write_statement(facts).headline.count("epsilon = 6,") == early


def test_what_owners_consented_to_is_shown(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert "What owners consented to" not in words(path)
    said = ("the noise scheme 'orig'", "rounds whose cost a client cannot bound by itself")
    facts = facts_of(path)
    manifest = msgspec.structs.replace(facts.run.manifest, consents=said)
    (item,) = [
        item
        for item in write_statement(replace(facts, run=replace(facts.run, manifest=manifest))).items
        if item.heading == "What owners consented to"
    ]
    assert item.points == said


@pytest.mark.slow
def test_trials_classes_and_computational_security_are_in_the_statement(tmp_path: Path) -> None:
    text = words(make(tmp_path))
    assert "Choosing settings by trials on the same clients" in text
    assert "number of classes, if it is read from the clients' labels" in text
    assert "computational: it rests on keys of 128 bits" in text
    kind = Kind()
    bits = math.floor(security_bits(RoundSize(PER_ROUND, coordinates=1_018_174), TRIES * kind.planned))
    assert f"in {kind.planned} rounds of {PER_ROUND} clients" in text
    assert f"at most 2^-{bits}, on top of delta" in text
    longer = words(make(tmp_path, planned=20 * 1024, name="l"))
    assert f"at most 2^-{bits - 10}, on top of delta" in longer
    assert "computational" not in words(make(tmp_path, noise="central", name="c"))


def test_a_large_epsilon_or_delta_is_warned_about(tmp_path: Path) -> None:
    facts = facts_of(make(tmp_path))
    before = " ".join(alert.text for alert in find_alerts(facts))
    assert "one over the clients" not in before
    assert "promises a client next to nothing" not in before
    plan = msgspec.structs.replace(facts.run.manifest.plan, epsilon=1e6, delta=0.0025)
    manifest = msgspec.structs.replace(facts.run.manifest, plan=plan)
    said = " ".join(alert.text for alert in find_alerts(replace(facts, run=replace(facts.run, manifest=manifest))))
    assert "Delta = 0.0025 is not below 0.002, one over the clients" in said
    assert "is above 0.001" in said
    assert "An epsilon of 1e+06 is above 20: it promises a client next to nothing" in said


@pytest.mark.parametrize("noise", PROVING)
def test_no_statement_speaks_of_theta(tmp_path: Path, noise: str) -> None:
    assert "theta" not in words(make(tmp_path, noise=noise))
