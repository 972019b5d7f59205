"""Runs whose unit of privacy is a record: the whole way from records to the stated epsilon."""

import json
import math
import re
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

import dordis
from dordis.config.reading import validate_settings
from dordis.errors import BudgetRefused, InputError, LedgerDamaged, ParametersRefused, UnexpectedRequest
from dordis.ledger.combine_runs import combined_epsilon
from dordis.ledger.ledger import Ledger, read_ledger
from dordis.ledger.ledger import verify_ledger as verify
from dordis.ledger.round_charge import Charge
from dordis.ledger.stated_epsilon import Basis
from dordis.owner.directory import ClientDirectory
from dordis.owner.participation import FileParticipation, Limits, OwnerBudget
from dordis.owner.policy import Policy
from dordis.privacy import record_accounting
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.clipping import Clipping, Quantile
from dordis.privacy.mechanisms.central_and_local_noise import LocalGaussian
from dordis.privacy.noise_strategies import Orig, Strategy, XNoise
from dordis.privacy.record_accounting import (
    RecordSampling,
    SampledEvents,
    calibrate,
    count_events,
    epsilon,
    sampling_word,
)
from dordis.privacy.scaling import LARGEST_BLOCK
from dordis.privacy.setting import Setting
from dordis.protocol import MemoryJournal
from dordis.protocols.costs import RoundCost, round_cost
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.plaintext import Begin
from dordis.protocols.secagg import SECAGG
from dordis.rounds.app import Aggregate, AppServer, RoundInfo
from dordis.rounds.invitation import Ready, Terms, Train, check_terms_kept
from dordis.rounds.records import Places, RecordClient
from dordis.runs.parties import policy_for
from dordis.runs.plan import RoundPlan
from tests.case_samples import sample_cases
from tests.cli.in_process import dordis as run_command
from tests.privacy.clipping_bits import aggregate_below
from tests.rounds.parties import MODEL, Member, invite_to, pieces

ROUNDS, RECORDS = 4, 60
SAMPLED = RecordSampling(sampling_word(0.2), RECORDS, count_events(ROUNDS))


def design(strategy: Strategy | None = None, dim: int = 64, **given: Any) -> RoundPlan:
    schedule = ParticipationSchedule(6, 6, ROUNDS)
    return RoundPlan(strategy or XNoise(), Setting(schedule, dim, records=SAMPLED, **given), epsilon=6.0)


class Zeros(RecordClient):
    """A client all of whose gradients are zero, so that a sum is nothing but noise."""

    records, width = RECORDS, 16

    def __init__(self, place: int, dim: int) -> None:
        self.dim = dim

    def record_gradients(self, round: RoundInfo, model: np.ndarray, places: Places) -> np.ndarray:
        return np.zeros((len(places), self.dim))

    @classmethod
    def of_records(cls, task: Any, place: int) -> "Zeros":
        return cls(place, **task.options)

    def prepare_data(self, round: RoundInfo, model: np.ndarray) -> np.ndarray:
        raise AssertionError("records are the unit")


class Ones(Zeros):
    """A client all of whose gradients are the same, far above the clip bound."""

    def record_gradients(self, round: RoundInfo, model: np.ndarray, places: Places) -> np.ndarray:
        return np.full((len(places), self.dim), 100.0)


class Keep(AppServer):
    """Keep the sums of all rounds, and what clients were told to expect of the noise."""

    seen: ClassVar[list[tuple[RoundInfo, Aggregate]]] = []

    def __init__(self, dim: int) -> None:
        self._dim = dim
        Keep.seen = []

    @property
    def dim(self) -> int:
        return self._dim

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        Keep.seen.append((round, aggregate))


def settings(folder: Path, client: type = Zeros, dim: int = 2048, **sections: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "output": str(folder),
        "app": {
            "server": f"{__name__}:Keep",
            "client": f"{__name__}:{client.__name__}",
            "options": {"dim": dim},
        },
        "federation": {"clients": 6, "per_round": 6, "rounds": ROUNDS},
        "privacy": {"unit": "record", "records": RECORDS, "sampling": 0.2},
        "simulation": {"fidelity": "ideal"},
    }
    for name, values in sections.items():
        given[name] = given.get(name, {}) | values
    return given


@pytest.mark.parametrize("fidelity", ["ideal", "full"])
@pytest.mark.parametrize("protocol", sample_cases(["secagg", "secagg+"], one_in=2))
def test_a_run_states_the_epsilon_of_its_plan(tmp_path: Path, fidelity: str, protocol: str) -> None:
    use = {"use": protocol} if protocol == "secagg" else {"use": protocol, "mode": "semi-honest"}
    result = dordis.run(settings(tmp_path, dim=64, simulation={"fidelity": fidelity}, protocol=use))
    assert result.stopped == "rounds"
    summary = verify(result.path / "ledger.jsonl")
    assert 5.9 < summary.stated.epsilon <= 6.0
    assert result.epsilon == summary.stated.epsilon
    assert summary.stated.basis is Basis.PLAN


@pytest.mark.parametrize("fidelity", ["ideal", "full"])
def test_noise_measured_from_zero_gradients_is_the_plan(tmp_path: Path, fidelity: str) -> None:
    given = settings(tmp_path, dim=2**14, simulation={"fidelity": fidelity}, federation={"rounds": 2})
    dordis.run(given)
    measured = np.mean([np.mean(aggregate.total**2) for _, aggregate in Keep.seen])
    expected = np.mean([info.deviation**2 for info, _ in Keep.seen])
    assert measured == pytest.approx(expected, rel=0.02)
    config = dordis.library.as_config(given)
    from dordis.simulation.run import prepare

    plan = prepare(config).job.design.plan
    assert plan is not None
    scale, kappa = plan.scale, plan.setting.kappa
    assert expected == pytest.approx(float(kappa * plan.variance) / scale**2, rel=1e-3)
    assert plan.variance / plan.sensitivity.squared >= Fraction(1 / plan.setting.allowance(6.0))


def test_the_mean_is_over_the_expected_batch(tmp_path: Path) -> None:
    dordis.run(settings(tmp_path, client=Ones, privacy={"epsilon": 20.0, "sampling": 1.0}))
    _, aggregate = Keep.seen[-1]
    assert aggregate.batch == RECORDS
    direction = np.full(2048, 1 / math.sqrt(2048))
    assert float(aggregate.mean @ direction) == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:an epsilon of")
def test_quantile_clipping_follows_the_norms_of_records(tmp_path: Path) -> None:
    clip = {"kind": "quantile", "start": 1.0, "rate": 0.5}
    for client, grows in ((Ones, True), (Zeros, False)):
        dordis.run(settings(tmp_path / client.__name__, client, privacy={"clip": clip, "epsilon": 50.0}))
        bounds = [info.clip for info, _ in Keep.seen]
        assert (bounds[-1] > bounds[0]) is grows
        below = [aggregate_below(aggregate) for _, aggregate in Keep.seen]
        assert np.mean(below) == pytest.approx(0.0 if grows else 1.0, abs=0.3)


@pytest.mark.parametrize("chunks", [1, 2])
def test_chunks_and_the_clipping_count_of_one_sample_are_one_event(chunks: int) -> None:
    """Mutants: an event for each chunk, or one for the count, would seem to cost less."""
    plan = design(dim=2 * LARGEST_BLOCK, further=Clipping.from_config(Quantile()).further)
    parameters = plan.agree_on(run=bytes(32), index=0, clients=range(1, 7), rotation=bytes(32), chunks=chunks)
    (count,) = parameters.encoding.further_releases
    noise = [one.reserved_variance() for one in parameters.plans]
    assert len(noise) == chunks + 1
    theta = parameters.encoding.sensitivity / (min(noise[:-1]) - Fraction(1, 2))
    theta += count.scale**2 / (noise[-1] - Fraction(1, 2))
    cost = round_cost(parameters)
    assert cost.theta_squared == pytest.approx(float(theta), rel=1e-9)
    assert cost.sampled == (SAMPLED.sampling, SAMPLED.events)
    assert cost.theta_squared <= plan.sampled.theta_squared  # type: ignore[union-attr]


def test_noise_that_goes_with_dropouts_is_stated_at_the_tolerated_number(tmp_path: Path) -> None:
    given = {"noise": {"kind": "orig"}}
    result = dordis.run(settings(tmp_path, dim=64, privacy=given))
    assert result.epsilon is not None
    assert result.epsilon > 6.0
    plan = design(Orig()).sampled
    assert plan is not None
    reserved = round_cost(design(Orig()).example()).theta_squared
    assert plan.theta_squared >= reserved > design().sampled.theta_squared  # type: ignore[union-attr]


class Stop(Exception):
    """Somebody ends the run."""


def test_a_run_stopped_after_one_round_states_the_epsilon_of_the_whole_plan(tmp_path: Path) -> None:
    whole = dordis.run(settings(tmp_path / "whole", dim=64))

    def stop(finished: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        dordis.run(settings(tmp_path / "stopped", dim=64), on_round=stop)
    path = next((tmp_path / "stopped").rglob("ledger.jsonl")).parent
    stopped = dordis.load(path)
    assert len(stopped.history) == 1
    assert stopped.epsilon == whole.epsilon == verify(path / "ledger.jsonl").stated.epsilon


@pytest.mark.parametrize("fidelity", ["ideal", "full"])
@pytest.mark.parametrize(("kind", "senders"), [("central", 1), ("local", 6)])
def test_baselines_have_the_noise_of_one_trusted_server_or_of_every_client(
    tmp_path: Path, kind: str, senders: int, fidelity: str
) -> None:
    given = settings(tmp_path, dim=2**14, privacy={"noise": {"kind": kind}}, simulation={"fidelity": fidelity})
    result = dordis.run(given | {"federation": {"clients": 6, "per_round": 6, "rounds": 2}})
    summary = verify(result.path / "ledger.jsonl")
    assert result.epsilon == summary.stated.epsilon
    assert 5.9 < summary.stated.epsilon <= 6.0
    assert summary.stated.basis is Basis.PLAN
    multiplier = calibrate(6.0, 1e-5, SAMPLED.sampling, count_events(2)).multiplier
    measured = np.mean([np.mean(aggregate.total**2) for _, aggregate in Keep.seen])
    assert measured == pytest.approx(senders * multiplier**2, rel=0.04)  # rounding adds up to 2 % to the server's
    assert "differentially private for each single record" in " ".join(result.report().read_text().split())


@pytest.mark.parametrize("kind", ["local", "central"])
def test_baselines_sum_clipped_records(tmp_path: Path, kind: str) -> None:
    dordis.run(settings(tmp_path, client=Ones, privacy={"epsilon": 20.0, "sampling": 1.0, "noise": {"kind": kind}}))
    _, aggregate = Keep.seen[-1]
    direction = np.full(2048, 1 / math.sqrt(2048))
    assert float(aggregate.mean @ direction) == pytest.approx(1.0, abs=0.02)


def test_a_client_that_leaves_out_its_noise_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the baselines' noise fails if clients add none."""
    monkeypatch.setattr(LocalGaussian, "add_client_noise", lambda *given: None)
    dordis.run(settings(tmp_path, privacy={"noise": {"kind": "local"}}))
    assert all(np.mean(aggregate.total**2) < 0.01 for _, aggregate in Keep.seen)


@pytest.mark.parametrize("kind", ["early", "none"])
def test_noise_that_is_not_analysed_for_records_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="with records as the unit of privacy the noise"):
        dordis.run(settings(tmp_path, dim=64, privacy={"noise": {"kind": kind}}))


def test_an_application_without_gradients_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one gradient for each record"):
        dordis.run(
            settings(tmp_path, dim=64)
            | {"app": {"server": "dordis.apps.mean:Server", "client": "dordis.apps.mean:Client"}}
        )


def test_records_are_declared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"privacy\.records"):
        dordis.run(settings(tmp_path, privacy={"records": 0}))


def test_a_round_beyond_the_planned_events_ends_the_run() -> None:
    from dordis.errors import EventsUsedUp
    from dordis.runs.budget import check_events

    plan = design()
    check_events(SAMPLED.events - 1, plan)
    with pytest.raises(EventsUsedUp, match="all 6 planned events"):
        check_events(SAMPLED.events, plan)


def charge_of(plan: RoundPlan, index: int) -> Charge:
    parameters = plan.agree_on(run=bytes(32), index=index, clients=range(1, 7), rotation=bytes(32))
    charge = plan.charge(parameters)
    assert charge is not None
    return charge


def test_the_ledger_takes_no_event_that_was_not_planned(tmp_path: Path) -> None:
    plan = design()
    ledger = Ledger.create(tmp_path / "ledger.jsonl", bytes(32), plan.budget)
    ledger.reserve(charge_of(plan, 0))
    with pytest.raises(InputError, match="already"):
        ledger.reserve(msgspec.structs.replace(charge_of(plan, 0), parameters="00" * 32))
    beyond = msgspec.structs.replace(charge_of(plan, 1), index=SAMPLED.events)
    with pytest.raises(InputError, match="beyond the 6 events"):
        ledger.reserve(beyond)
    with pytest.raises(InputError, match="and a planned event"):
        ledger.reserve(charge_of(plan.for_cost(2 * plan.allowed), 1))
    assert ledger.summary().stated.epsilon == pytest.approx(epsilon(plan.sampled, plan.delta))  # type: ignore[arg-type]


def test_a_ledger_with_another_plan_than_the_manifest_is_noticed(tmp_path: Path) -> None:
    result = dordis.run(settings(tmp_path, dim=64))
    ledger = result.path / "ledger.jsonl"
    first, *rest = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(first.replace(b'"events":6', b'"events":5') + b"".join(rest))
    with pytest.raises(LedgerDamaged):
        verify(ledger)


def test_parameters_keep_the_terms_of_the_invitation() -> None:
    plan = design()
    terms, parameters = plan.promise(plan.least), plan.example()
    check_terms_kept(terms, Terms.from_parameters(parameters))
    other = msgspec.structs.replace(parameters.encoding.records, sampling=sampling_word(0.3))
    with pytest.raises(ParametersRefused):
        check_terms_kept(msgspec.structs.replace(terms, records=other), Terms.from_parameters(parameters))
    with pytest.raises(ParametersRefused):
        check_terms_kept(msgspec.structs.replace(terms, records=msgspec.UNSET), Terms.from_parameters(parameters))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("shift", 5, "is not what C_q and k give"),
        ("length", 2**22, "is not what C_q and k give"),
        ("events", 0, "at least 1 event"),
    ],
)
def test_a_client_refuses_records_that_the_accounting_does_not_hold_for(field: str, value: int, why: str) -> None:
    parameters = design().example()
    records = msgspec.structs.replace(parameters.encoding.records, **{field: value})
    encoding = msgspec.structs.replace(parameters.encoding, records=records)
    with pytest.raises(ParametersRefused, match=why):
        DistributedDP.from_parameters(msgspec.structs.replace(parameters, encoding=encoding), 64)


def test_a_client_refuses_a_sensitivity_below_the_bound() -> None:
    parameters = design().example()
    encoding = msgspec.structs.replace(parameters.encoding, sensitivity=parameters.encoding.sensitivity - 1)
    with pytest.raises(ParametersRefused, match="one record may change the sum by more"):
        DistributedDP.from_parameters(msgspec.structs.replace(parameters, encoding=encoding), 64)


def test_an_owner_agrees_to_records_only_if_it_says_so() -> None:
    terms = design().promise(4)
    usual = Policy(epsilon=6.0, delta=1e-5, colluders=1)
    with pytest.raises(ParametersRefused, match="'units'"):
        usual.check_terms(terms)
    agreed = msgspec.structs.replace(usual, units=frozenset({"record"}))
    agreed.check_terms(terms)
    with pytest.raises(ParametersRefused, match="'sampling'"):
        msgspec.structs.replace(agreed, sampling=Fraction(1, 10)).check_terms(terms)
    with pytest.raises(ParametersRefused, match="'noise'"):
        msgspec.structs.replace(agreed, noise=Fraction(100)).check_terms(terms)
    with pytest.raises(ParametersRefused, match="'units'"):
        agreed.check_terms(msgspec.structs.replace(terms, records=msgspec.UNSET))


def test_an_owner_who_agrees_to_a_run_agrees_to_its_sampling_and_to_no_more() -> None:
    agreed = policy_for(design(), SECAGG)
    terms = design().promise(6)
    agreed.check_terms(terms)
    more = msgspec.structs.replace(terms.records, sampling=SAMPLED.sampling + 1)  # type: ignore[type-var]
    with pytest.raises(ParametersRefused, match="'sampling'"):
        agreed.check_terms(msgspec.structs.replace(terms, records=more))


def test_an_owner_reserves_the_whole_plan_at_its_first_upload(tmp_path: Path) -> None:
    plan = SampledEvents(sampling_word(0.05), 1 / 1.06**2, 400)
    cost = RoundCost(plan.theta_squared, 0.0, 0.0, (plan.sampling, plan.events))
    mine = FileParticipation(tmp_path / "participations")
    enough = OwnerBudget(epsilon(plan, 1e-5) * 1.001, 1e-5)
    mine.reserve(b"a" * 32, 0, cost=cost, limits=Limits(budget=enough))
    again = FileParticipation(tmp_path / "participations")
    assert again.plans() == (plan,)
    assert enough.epsilon_spent(again.spent(), again.plans()) == pytest.approx(epsilon(plan, 1e-5))
    again.reserve(b"a" * 32, 399, cost=cost, limits=Limits(budget=enough))  # nothing more is spent
    with pytest.raises(ParametersRefused, match="cannot change it or go beyond it"):
        again.reserve(b"a" * 32, 400, cost=cost)
    with pytest.raises(ParametersRefused, match="cannot change it or go beyond it"):
        again.reserve(b"a" * 32, 5, cost=cost._replace(sampled=(plan.sampling, 800)))
    with pytest.raises(BudgetRefused):
        again.reserve(b"b" * 32, 0, cost=cost, limits=Limits(budget=enough))


def test_rounds_of_clients_and_of_records_are_added_up(tmp_path: Path) -> None:
    plan = SampledEvents(sampling_word(0.05), 1 / 1.06**2, 400)
    mine = FileParticipation(tmp_path / "participations")
    mine.reserve(b"a" * 32, 0, cost=RoundCost(plan.theta_squared, 0.0, 0.0, (plan.sampling, plan.events)))
    mine.reserve(b"b" * 32, 0, cost=RoundCost(0.05, 0.0))
    budget = OwnerBudget(6.0, 1e-5)
    both = budget.epsilon_spent(mine.spent(), mine.plans())
    assert both > budget.epsilon_spent(RoundCost(0.0, 0.0), (plan,)) > 5.9


@pytest.mark.slow
def test_every_try_draws_a_fresh_sample(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []

    class Watched(Zeros):
        def record_gradients(self, round: RoundInfo, model: np.ndarray, places: Places) -> np.ndarray:
            seen.append(tuple(places))
            return super().record_gradients(round, model, places)

    globals()["Watched"] = Watched
    dordis.run(settings(tmp_path, client=Watched, dim=8, privacy={"sampling": 0.5}))
    samples = [places for places in seen if places[0] >= 0]
    assert len(set(samples)) > len(samples) / 3  # slices of the tests of independence repeat, samples do not


def test_a_client_that_was_restarted_after_training_leaves_the_round(tmp_path: Path) -> None:
    plan = design(dim=64)
    parameters = plan.agree_on(
        run=bytes(32), index=0, clients=range(1, 7), rotation=bytes(32), model=MODEL.digest, beacon=bytes(32)
    )

    def started() -> Member:
        member = Member(1, journals=ClientDirectory(tmp_path).journals)
        member.client.app = Zeros(0, 64)
        return member

    before = started()
    assert before.handle(invite_to(parameters, dim=64), *pieces(), Train())[-1] == Ready()
    before.client.stop()
    again = started()
    again.client.restore(parameters.round)
    with pytest.raises(UnexpectedRequest, match="before the update is made"):
        again.handle(Begin(parameters))
    assert "attend" not in again.diary


@pytest.mark.slow
def test_the_journal_keeps_the_encoded_vector_and_never_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    note = MemoryJournal.note

    def watch(self: MemoryJournal, event: Any) -> None:
        noted.append(type(event).__name__)
        note(self, event)

    monkeypatch.setattr(MemoryJournal, "note", watch)
    dordis.run(settings(tmp_path, client=Ones, dim=64, simulation={"fidelity": "full"}, federation={"rounds": 1}))
    assert "Encoded" in noted
    assert "Trained" not in noted


def test_the_statement_is_about_records_and_claims_nothing_for_clients(tmp_path: Path) -> None:
    result = dordis.run(settings(tmp_path, dim=64))
    text = " ".join(result.report().read_text().split())
    assert "differentially private for each single record" in text
    assert "for each single client" not in text
    assert "A client as a whole has no epsilon in this run." in text
    assert "All 6 events that were planned" in text


@pytest.mark.slow
def test_the_planner_shows_kappa_and_a_person_at_two_clients() -> None:
    command = ["plan", "noise", "--unit", "record", "--clients", "10", "--per-round", "10", "--rounds", "400"]
    command += ["--dim", "10000", "--epsilon", "6", "--sampling", "0.05"]
    shown = run_command(*command, "--records", "1000", "--clients-per-person", "2", "--json")
    fields = json.loads(shown.stdout)
    assert fields["kappa"] == pytest.approx(6 / 5)
    assert fields["events"] == 408
    assert fields["multiplier"] == pytest.approx(1.065, abs=0.002)
    assert fields["person_epsilon"] == pytest.approx(13.8, abs=0.1)
    assert run_command(*command).returncode != 0


def test_the_page_about_hospitals_runs_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "hospitals.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "hospitals.md", "exec"), {})  # noqa: S102  it is our own page
    accuracy, stated = map(float, capsys.readouterr().out.split())
    assert accuracy > 0.75
    assert 2.9 < stated <= 3.0
    (command,) = re.findall(r"^dordis (plan .*)$", page, re.MULTILINE)
    assert run_command(*command.split()).returncode == 0


VISITS = dordis.Table(label="ill", client="hospital", ranges={"age": (0, 100)}, categories={"ill": ("no", "yes")})


def visits() -> dict[str, list[Any]]:
    """Return four hospitals with ten patients each, who came once or several times."""
    rng = np.random.default_rng(3)
    rows: dict[str, list[Any]] = {"hospital": [], "patient": [], "age": [], "ill": []}
    for patient in range(40):
        age = float(rng.uniform(20, 90))
        for _ in range(1 + patient % 3):
            for name, value in zip(
                rows, (f"h{patient % 4}", f"p{patient}", age, "yes" if age > 55 else "no"), strict=True
            ):
                rows[name].append(value)
    return rows


def test_all_visits_of_a_patient_are_one_record_and_the_statement_says_so(tmp_path: Path) -> None:
    given = {"table": VISITS, "epsilon": 6, "rounds": 2, "unit": "record", "records": 10, "sampling": 0.5}
    result = dordis.train(
        "softmax", visits(), record="patient", output=tmp_path, fidelity="ideal", accept_hopeless=True, **given
    )
    assert result.epsilon is not None
    page = result.report().read_text()
    assert "all rows with the same patient" in page
    assert "several rows at one of them" not in page
    given["table"] = msgspec.structs.replace(VISITS, exclude=("patient",))
    with pytest.raises(InputError, match=r"holds \d\d records and 10 are declared"):  # without it each row is a record
        dordis.train("softmax", visits(), output=tmp_path, fidelity="ideal", accept_hopeless=True, **given)


def test_a_record_column_needs_a_table_and_records_as_the_unit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"set privacy\.unit = 'record'"):
        dordis.run({"output": str(tmp_path), "privacy": {"record": "patient"}})
    with pytest.raises(InputError, match="names a column of a table; digits is no table"):
        dordis.run({"output": str(tmp_path), "privacy": {"record": "patient", "unit": "record", "records": 9}})
    clients = [(np.zeros((4, 2)), np.arange(4) % 2)] * 3
    with pytest.raises(InputError, match="names a column of a table: give table="):
        dordis.train("softmax", clients, epsilon=3, unit="record", records=4, record="patient", output=tmp_path)


@pytest.mark.slow
def test_the_preset_of_hospitals_protects_patients(tmp_path: Path) -> None:
    config = {"output": str(tmp_path), "federation": {"rounds": 8}, "simulation": {"fidelity": "ideal"}}
    result = dordis.run(dordis.library.reading.merge_settings(preset("hospitals"), config))
    assert result.metrics["accuracy"] > 0.8
    assert 2.9 < result.epsilon <= 3.0  # type: ignore[operator]


def preset(name: str) -> dict[str, Any]:
    path = Path(dordis.__file__).parent / "config" / "presets" / f"{name}.toml"
    return tomllib.loads(path.read_text())


def test_runs_of_records_are_combined_by_their_sums_and_have_no_successor(tmp_path: Path) -> None:
    from dordis.simulation.run import prepare

    settings = {
        "federation": {"clients": 6, "per_round": 6, "rounds": 2},
        "privacy": {"unit": "record", "records": 400, "sampling": 0.1, "epsilon": 6.0},
        "simulation": {"fidelity": "ideal"},
        "output": str(tmp_path),
    }
    one, two = (dordis.run(settings, accept_hopeless=True) for _ in range(2))
    assert combined_epsilon([one.path]).epsilon == pytest.approx(one.epsilon)
    together = combined_epsilon([one.path, two.path])
    plan = read_ledger(one.path / "ledger.jsonl")[0].budget.records
    assert plan is not None
    assert together.epsilon == pytest.approx(2 * record_accounting.epsilon(plan, together.delta / 2))
    assert 2 * one.epsilon < together.epsilon < 2.2 * one.epsilon
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="has no successor"):
        prepare(validate_settings(settings)).succeed(one.path, tmp_path, "")
    assert sorted(tmp_path.rglob("*")) == before
