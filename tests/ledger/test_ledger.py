"""The ledger: what was charged stays charged, whatever stops, and whatever was touched in the file shows."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dordis import durable_files
from dordis.durable_files import LockedFile
from dordis.errors import BudgetExceeded, DordisError, InputError, LedgerDamaged, RoundFailed
from dordis.ledger import ledger as module
from dordis.ledger.client_spending import Account
from dordis.ledger.ledger import Budget, Charge, Ledger, verify_ledger
from dordis.privacy import accounting, planning
from dordis.privacy.scaling import Sensitivity
from dordis.privacy.setting import Setting
from dordis.privacy.xnoise_components import Scheme, removal_context
from dordis.protocols.cohort import agree_on
from dordis.protocols.costs import RoundCost, round_cost
from dordis.protocols.parameters import Encoding, Parameters, extend
from tests.ledger.charged_rounds import (
    DELTA,
    DIM,
    SQUARED,
    VARIANCES,
    Ended,
    charge_of,
    ended,
    forge,
    new_ledger,
    parameters_of,
    spent,
)
from tests.paused_processes import start_paused
from tests.protocols.rounds import Round, random_inputs
from tests.runs.cohorts import OTHER_RUN, RUN

UNLIMITED = Budget(None, DELTA)
LEAST = charge_of().releases[0].variance
ONE_ROUND = spent([(SQUARED, DIM, LEAST)])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def make(path):
    return lambda budget=UNLIMITED: Ledger.create(path, RUN, budget)


def finish(ledger, index, *dropped, **options):
    """Run a round from its reservation to its end."""
    parameters = parameters_of(index, **options)
    ledger.reserve(Charge.from_parameters(parameters))
    ledger.complete(index, ended(parameters, *(dropped or ((), ()))))


def approx(value):
    return pytest.approx(value, rel=1e-7, abs=1e-9)


# What a round costs


def test_a_new_ledger_has_cost_nobody_anything(make):
    summary = make().summary()
    assert (summary.epsilon, summary.worst, summary.clients, summary.lines) == (0.0, None, {}, 1)
    assert summary.run == RUN.hex()


def test_a_budget_may_be_a_whole_number(make):
    assert make(Budget(6, DELTA)).summary().budget == 6


def test_a_reserved_round_costs_all_of_u_the_least_noise_that_it_may_have(make):
    ledger = make()
    ledger.reserve(charge_of(clients=[3, 5, 8, 9, 11, 30]))
    assert min(VARIANCES) <= LEAST < min(VARIANCES) + 1
    assert ledger.summary().clients == approx(dict.fromkeys([3, 5, 8, 9, 11, 30], ONE_ROUND))


def test_a_completed_round_costs_whoever_is_in_a_sum(make):
    ledger = make()
    finish(ledger, 0, {1}, {2})
    assert ledger.summary().clients == approx(dict.fromkeys(range(6), ONE_ROUND))  # 1 and 2 are in one chunk each
    finish(ledger, 1, {3}, {3})
    twice = spent([(SQUARED, DIM, LEAST)] * 2)
    assert ledger.summary().clients == approx(dict.fromkeys(range(6), twice) | {3: ONE_ROUND})
    assert (ledger.summary().completed, ledger.summary().worst) == (2, 0)


def test_a_round_without_an_output_stays_charged_in_full_and_its_index_is_used_up(make):
    ledger = make()
    ledger.reserve(charge_of())
    assert ledger.summary().clients == approx(dict.fromkeys(range(6), ONE_ROUND))
    assert ledger.summary().reserved == 1
    with pytest.raises(InputError, match="next index"):
        ledger.reserve(charge_of(clients=[3, 5, 8, 9, 11, 30]))


def test_a_round_that_goes_on_after_a_restart_is_charged_and_completed_once(make):
    ledger, outcome = make(), ended(parameters_of(), (), {1})
    for _ in range(2):
        ledger.reserve(charge_of())
        ledger.check_budget(charge_of())
        assert ledger.summary().lines == 2
    for _ in range(2):
        ledger.complete(0, outcome)
        assert ledger.summary().lines == 3
    with pytest.raises(InputError):
        ledger.complete(0, ended(parameters_of(), (), {2}))


def test_the_last_index_is_that_of_any_round_ever_reserved(make):
    ledger = make()
    assert ledger.last_index() == -1
    ledger.reserve(charge_of(7))
    finish(ledger, 3, {1}, {1})
    assert ledger.last_index() == 7
    assert {index: count.clients for (_, index), count in ledger.owner_charges().items()} == dict.fromkeys(
        (3, 7), (*range(6),)
    )
    ledger.record_owner_charges(9, [2, 4], RoundCost(0.5, 1e-20))
    assert ledger.last_index() == 9


def test_a_restarted_server_completes_its_round(path):
    Ledger.create(path, RUN, UNLIMITED).reserve(charge_of())
    Ledger.open(path).complete(0, ended(parameters_of(), (), ()))
    assert verify_ledger(path).completed == 1


def test_noise_that_was_kept_beyond_the_reserve_lowers_the_cost(make):
    ledger = make()
    finish(ledger, 0, (), {4}, scheme=Scheme.ORIG)
    charged = [outcome.charged for outcome in ended(parameters_of(scheme=Scheme.ORIG), (), {4})]
    reserved = charge_of(scheme=Scheme.ORIG).releases[0].variance
    assert min(charged) > reserved
    assert ledger.summary().epsilon == approx(spent([(SQUARED, DIM, min(charged))]))
    assert ledger.summary().epsilon < spent([(SQUARED, DIM, reserved)])


def test_more_dropouts_than_tolerated_are_charged_as_they_are(make):
    ledger = make()
    finish(ledger, 0, {1, 2}, ())
    charged = ended(parameters_of(), {1, 2}, ())[0].charged
    assert charged < LEAST
    assert ledger.summary().clients[2] == approx(spent([(SQUARED, DIM, charged)]))


def test_every_release_of_a_round_is_charged(make):
    parameters, ledger = parameters_of(), make()
    both = [(Sensitivity(SQUARED, DIM - 1), [0]), (Sensitivity(25, 1), [1])]
    ledger.reserve(Charge.from_parameters(parameters, both))
    variances = [plan.reserved_variance() for plan in parameters.plans]
    assert ledger.summary().epsilon == approx(spent([(SQUARED, DIM - 1, variances[0]), (25, 1, variances[1])]))
    assert ledger.summary().epsilon > spent([(SQUARED, DIM - 1, variances[0])])


@pytest.mark.parametrize("spread", [[[0]], [[0], [0, 1]], [[0, 1], []], [[0], [1, 2]], [[-1, 0]]])
def test_every_chunk_belongs_to_one_release(spread):
    with pytest.raises(InputError, match="belongs to one release"):
        Charge.from_parameters(parameters_of(), [(Sensitivity(SQUARED, DIM), chunks) for chunks in spread])


def test_a_mechanism_that_nothing_is_known_of_is_refused():
    silent = Encoding(rotation=bytes(32))
    parameters = agree_on(run=RUN, index=0, clients=range(4), threshold=3, bits=16, ends=[4], encoding=silent)
    with pytest.raises(InputError, match="proves nothing"):
        Charge.from_parameters(parameters)


def test_a_round_without_noise_passes_every_budget(make):
    bare = agree_on(
        run=RUN,
        index=0,
        clients=range(4),
        threshold=3,
        bits=16,
        ends=[4],
        encoding=Encoding(mechanism="skellam", sensitivity=9),
    )
    with pytest.raises(BudgetExceeded):
        make(Budget(1e6, DELTA)).check_budget(Charge.from_parameters(bare))


def test_a_round_of_secagg_is_completed_with_its_outputs(make):
    parameters = parameters_of()
    played = Round(parameters, random_inputs(parameters, 1), lost_requests=[(2, "CollectInput", 0)])
    ledger = make()
    ledger.reserve(Charge.from_parameters(parameters))
    ledger.complete(0, played.run())
    facts = ledger.round(0).outcomes
    assert [fact.dropped for fact in facts] == [(2,), ()]
    assert all(fact.left > fact.charged >= LEAST for fact in facts)
    assert ledger.summary().epsilon == approx(spent([(SQUARED, DIM, min(fact.charged for fact in facts))]))


WRONG = {
    "another survivor": lambda e: [Ended((*e[0].survivors, 99), e[0].left, e[0].charged), e[1]],
    "more charged": lambda e: [Ended(e[0].survivors, e[0].left + 1, e[0].charged + 1), e[1]],
    "less left": lambda e: [Ended(e[0].survivors, e[0].charged, e[0].charged), e[1]],
    "a chunk less": lambda e: e[:1],
    "a chunk more": lambda e: [*e, e[0]],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_facts_that_do_not_follow_from_the_plan_are_refused(make, wrong):
    ledger = make()
    ledger.reserve(charge_of())
    with pytest.raises(InputError):
        ledger.complete(0, wrong(ended(parameters_of(), (), {1})))
    assert ledger.summary().reserved == 1
    ledger.complete(0, ended(parameters_of(), (), {1}))


def test_in_the_paper_s_accounting_every_client_pays_for_every_round(path):
    """Renyi divergences of all rounds add up at the paper's orders; dp-accounting converts them."""
    from dp_accounting.rdp import compute_epsilon

    ledger = Ledger.create(path, RUN, Budget(6.0, 1e-2, paper=True))
    finish(ledger, 0, clients=[1, 2, 3, 4, 5, 6])
    finish(ledger, 1, clients=[11, 12, 13, 14, 15, 16])
    orders = [*range(2, 129), 256]
    l1, mu = Sensitivity(SQUARED, DIM).l1, float(LEAST)
    curve = [
        2 * (a * SQUARED / (2 * mu) + min(((2 * a - 1) * SQUARED + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu)))
        for a in orders
    ]
    expected = pytest.approx(compute_epsilon(orders, curve, 1e-2)[0], rel=1e-6)
    verified = verify_ledger(path)
    assert set(verified.clients) == {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16}
    assert all(epsilon == expected for epsilon in verified.clients.values())
    assert json.loads(path.read_bytes().splitlines()[0])["accounting"] == "paper"
    for budget in (Budget(6.0, 1e-2), Budget(6.0, 1e-2, paper=True)):  # what was spent must not be forgotten
        with pytest.raises(InputError, match="has no successor"):
            Ledger.succeed(Ledger.open(path), path.with_name("next.jsonl"), OTHER_RUN, budget)
    assert verify_ledger(path) == verified


# What owners count


def test_what_owners_may_count_is_on_the_disk_and_costs_nothing_until_it_is_charged(path):
    ledger, parameters = Ledger.create(path, RUN, Budget(6.0, DELTA)), parameters_of()
    cost = round_cost(parameters)
    ledger.record_owner_charges(0, [4, 1, 2], cost)
    assert Ledger.open(path).owner_charges()[RUN, 0].clients == (1, 2, 4)
    assert verify_ledger(path).epsilon == 0.0
    for use in (lambda: ledger.record_owner_charges(0, [1], cost), lambda: ledger.record_owner_charges(1, [], cost)):
        with pytest.raises(InputError):
            use()
    ledger.reserve(Charge.from_parameters(parameters))
    assert [json.loads(line)["kind"] for line in path.read_bytes().splitlines()] == ["opened", "counted", "reserved"]
    assert ledger.owner_charges()[RUN, 0].clients == (1, 2, 4)
    ledger.record_owner_charges(5, [77], cost)
    with pytest.raises(InputError, match="other clients than"):
        ledger.reserve(charge_of(5))


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG])
def test_client_and_ledger_compute_the_same_cost(scheme):
    parameters = parameters_of(scheme=scheme)
    parameters = structs.replace(parameters, encoding=structs.replace(parameters.encoding, rotation=bytes(32)))
    charge = Charge.from_parameters(parameters)
    assert charge.owner_charge.cost == round_cost(parameters).theta_squared
    assert charge.owner_charge.distance == round_cost(parameters).distance
    expected = SQUARED / (min(plan.reserved_variance() for plan in parameters.plans) - Fraction(1, 2))
    assert charge.owner_charge.cost == approx(float(expected))


def test_a_chunk_that_is_closed_is_charged_at_what_is_known_and_the_others_at_the_worst(make):
    ledger, parameters = make(), parameters_of(scheme=Scheme.ORIG)
    charge, plans = Charge.from_parameters(parameters), parameters.plans
    some = charge.after_dropouts({0: 0})
    assert some.releases[0].variance == min(plans[0].charged_variance(range(6), b""), plans[1].reserved_variance())
    assert charge.without_dropout.releases[0].variance == min(plan.charged_variance(range(6), b"") for plan in plans)
    assert charge.releases[0].variance == min(plan.reserved_variance() for plan in plans) < some.releases[0].variance
    ledger.reserve(some)
    assert ledger.summary().epsilon == approx(spent([(SQUARED, DIM, some.releases[0].variance)]))
    with pytest.raises(InputError, match="was charged for 0 dropouts"):
        ledger.complete(0, ended(parameters, {2}, {2}))
    ledger.complete(0, ended(parameters, (), {2}))


# The budget


def test_a_round_that_would_pass_the_budget_is_not_reserved(make):
    ledger = make(Budget(spent([(SQUARED, DIM, LEAST)] * 3) * 1.0001, DELTA))
    for index in range(3):
        ledger.check_budget(charge_of(index))
        finish(ledger, index)
    before = ledger.summary()
    with pytest.raises(BudgetExceeded):
        ledger.check_budget(charge_of(3))
    for use in (ledger.check_budget, ledger.reserve):
        with pytest.raises(BudgetExceeded) as refused:
            use(charge_of(3))
        assert refused.value.epsilon > refused.value.budget >= before.epsilon
        assert not isinstance(refused.value, RoundFailed)  # a retry would not help
    assert ledger.summary() == before
    ledger.reserve(charge_of(3, clients=range(10, 16)))  # others have not spent theirs


def test_the_budget_is_kept_by_one_check(make, monkeypatch):
    ledger = make(Budget(ONE_ROUND / 2, DELTA))
    monkeypatch.setattr(Account, "check_budget", lambda *_: None)
    ledger.reserve(charge_of())
    with pytest.raises(BudgetExceeded):
        ledger.summary().check_budget()


def test_one_client_without_budget_stops_the_round(make):
    ledger = make(Budget(ONE_ROUND * 1.1, DELTA))
    finish(ledger, 0, clients=range(6))
    with pytest.raises(BudgetExceeded) as refused:
        ledger.reserve(charge_of(1, clients=[5, 20, 21, 22, 23, 24]))
    assert refused.value.client == 5


def test_a_planned_run_takes_as_many_rounds_as_were_planned_and_no_more():
    everyone = accounting.ParticipationSchedule(population=8, per_round=8, rounds=6)
    plan = planning.plan(Setting(everyone, dim=100, delta=DELTA), epsilon=3.0)
    ledger = new_ledger(RUN, Budget(3.0, DELTA))

    def charge(index):
        return Charge.from_parameters(
            agree_on(
                run=RUN,
                index=index,
                clients=range(8),
                threshold=plan.setting.t,
                tolerance=plan.setting.T,
                bits=plan.bits,
                ends=[plan.setting.padded],
                variances=[plan.variance],
                encoding=Encoding("skellam", 1.0, plan.sensitivity.squared, plan.scale, plan.setting.block),
            )
        )

    for index in range(plan.cap):
        ledger.reserve(charge(index))
    assert 0.999 * plan.epsilon < ledger.summary().epsilon <= plan.epsilon
    with pytest.raises(BudgetExceeded):
        ledger.reserve(charge(plan.cap))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (float("nan"), 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_a_budget_that_means_nothing_is_refused(epsilon, delta):
    with pytest.raises(InputError):
        Budget(epsilon, delta)


# Sequences of rounds, against a second computation

ROUNDS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 9), min_size=6, max_size=6),
        st.sampled_from(["complete", "fail"]),
        st.integers(-1, 5),
        st.integers(-1, 5),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(ROUNDS, st.sampled_from([None, 0.5, 1.0]))
def test_epsilon_of_every_client_is_that_of_the_rounds_it_took_part_in(rounds, budget):
    histories = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger = Ledger.create(path, RUN, Budget(budget, DELTA))
        for index, (clients, how, *gone) in enumerate(rounds):
            parameters = parameters_of(index, clients)
            full = {u: [*histories.get(u, []), (SQUARED, DIM, LEAST)] for u in clients}
            passes = budget is not None and max(map(spent, full.values())) > budget
            if passes:
                for refused in (ledger.check_budget, ledger.reserve):
                    with pytest.raises(BudgetExceeded):
                        refused(Charge.from_parameters(parameters))
                continue
            ledger.reserve(Charge.from_parameters(parameters))
            everyone = sorted(clients)
            dropped = [{everyone[place]} if place >= 0 else set() for place in gone]
            present = clients
            if how == "complete":
                ledger.complete(index, ended(parameters, *dropped))
                present = clients - (dropped[0] & dropped[1])
            histories |= {u: full[u] if u in present else histories.get(u, []) for u in clients}
        expected = {u: spent(history) for u, history in histories.items()}
        summary = verify_ledger(path, run=RUN, head=ledger.summary().head)
        assert summary == ledger.summary() == Ledger.open(path).summary()
        assert summary.clients == approx(expected)
        assert summary.epsilon == approx(max(expected.values(), default=0.0))


# The file


def test_lines_are_json_chained_from_the_run_id_on(path):
    ledger = Ledger.create(path, RUN, Budget(6.0, DELTA))
    finish(ledger, 0, {1}, ())
    ledger.reserve(charge_of(1))
    written = path.read_bytes().splitlines(keepends=True)
    read = [json.loads(line) for line in written]
    assert [entry["kind"] for entry in read] == ["opened", "reserved", "completed", "reserved"]
    hashes = [hashlib.sha256(line).hexdigest() for line in written]
    assert [entry["previous"] for entry in read] == [RUN.hex(), *hashes[:-1]]
    assert ledger.summary().head == hashes[-1]
    (release,) = read[1]["charge"]["releases"]
    assert (release["l2_squared"], release["l1"], release["dim"]) == (SQUARED, 20.0 * 8.0, DIM)
    assert Fraction(release["variance"]) == LEAST
    assert read[2]["facts"][0]["dropped"] == [1]
    assert Fraction(read[2]["facts"][0]["charged"]) >= VARIANCES[0]
    assert path.stat().st_mode & 0o077 == 0


def test_a_charge_is_on_the_disk_before_reserve_returns(path, monkeypatch):
    ledger = Ledger.create(path, RUN, UNLIMITED)
    steps = []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda *a: (steps.append("write"), write(*a))[1])
    monkeypatch.setattr(os, "fsync", lambda *a: (steps.append("fsync"), fsync(*a))[1])
    ledger.reserve(charge_of())
    assert steps == ["write", "fsync"]


def test_a_new_ledger_is_on_the_disk_with_its_name(path, monkeypatch):
    synced = []
    monkeypatch.setattr(durable_files, "sync_directory", lambda folder: synced.append((folder, path.read_bytes())))
    Ledger.create(path, RUN, UNLIMITED)
    assert synced == [(path.parent, path.read_bytes())]
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_a_ledger_is_never_begun_twice(path):
    Ledger.create(path, RUN, UNLIMITED).reserve(charge_of())
    before = path.read_bytes()
    with pytest.raises(InputError, match="already"):
        Ledger.create(path, RUN, UNLIMITED)
    assert path.read_bytes() == before
    assert [child.name for child in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("run", [b"", bytes(31), bytes(33)])
def test_what_is_no_run_id_is_refused(path, run):
    with pytest.raises(InputError):
        Ledger.create(path, run, UNLIMITED)


def test_a_run_does_not_go_on_without_its_own_ledger(path):
    with pytest.raises(LedgerDamaged, match="no ledger"):
        Ledger.open(path, RUN)
    ledger = Ledger.create(path, RUN, UNLIMITED)
    for use in (Ledger.open, lambda where, run: verify_ledger(where, run=run)):
        with pytest.raises(LedgerDamaged, match="another run"):
            use(path, OTHER_RUN)
    path.unlink()
    with pytest.raises(LedgerDamaged, match="no ledger"):
        ledger.reserve(charge_of())
    with pytest.raises(LedgerDamaged, match="no ledger"):
        verify_ledger(path)


def test_a_full_disk_charges_nothing_and_leaves_no_half_line(path, monkeypatch):
    ledger = Ledger.create(path, RUN, UNLIMITED)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(OSError, match="no room"):
            ledger.reserve(charge_of())
    assert verify_ledger(path).lines == 1
    ledger.reserve(charge_of())
    assert verify_ledger(path).lines == 2


def some_rounds(path):
    ledger = Ledger.create(path, RUN, Budget(6.0, DELTA))
    finish(ledger, 0, {1}, ())
    finish(ledger, 1)
    ledger.reserve(charge_of(2))
    return path.read_bytes().splitlines(keepends=True)


DAMAGED = {
    "a line less": lambda lines: lines[:3] + lines[4:],
    "the first less": lambda lines: lines[1:],
    "exchanged": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
    "twice": lambda lines: [*lines, lines[-1]],
    "the first twice": lambda lines: [lines[0], *lines],
    "another number": lambda lines: [lines[0], lines[1].replace(b'"l2_squared":400', b'"l2_squared":399'), *lines[2:]],
    "the last altered": lambda lines: [*lines[:-1], lines[-1].replace(b'"clients":[0,', b'"clients":[7,')],
    "a space": lambda lines: [*lines[:-1], lines[-1].replace(b",", b", ", 1)],
    "an empty line": lambda lines: [*lines, b"\n"],
    "crlf": lambda lines: [line[:-1] + b"\r\n" for line in lines],
    "zeros": lambda lines: [*lines, bytes(100)],
    "nothing": lambda lines: [],
    "not json": lambda lines: [*lines, b"hello\n"],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_ledger_stops_the_run(path, damage):
    path.write_bytes(b"".join(damage(some_rounds(path))))
    before = path.read_bytes()
    for use in (Ledger.open, verify_ledger):
        with pytest.raises(LedgerDamaged):
            use(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_half_a_line_after_a_crash_stops_the_run_and_says_what_to_do(path, kept):
    whole = some_rounds(path)
    path.write_bytes(b"".join(whole[:-1]) + whole[-1][:kept])
    size = sum(map(len, whole[:-1]))
    with pytest.raises(LedgerDamaged, match=rf"line 6 .*truncate -s {size}\b") as refused:
        Ledger.open(path)
    assert refused.value.line == 6
    os.truncate(path, size)  # what it said
    Ledger.open(path).reserve(charge_of(2))


@pytest.mark.slow
def test_any_altered_byte_is_noticed(path):
    whole = b"".join(some_rounds(path)[:3])
    for place in range(len(whole)):
        for byte in {whole[place] ^ 1, 10, 48} - {whole[place]}:
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with pytest.raises(LedgerDamaged):
                verify_ledger(path)


def test_lines_cut_off_the_end_are_noticed_by_whoever_saw_them(path):
    ledger = Ledger.create(path, RUN, UNLIMITED)
    ledger.reserve(charge_of(0))
    before = path.read_bytes()
    ledger.reserve(charge_of(1))
    head = ledger.summary().head
    assert verify_ledger(path, head=head).lines == 3
    path.write_bytes(before)
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match="lost or changed"):
            ledger.reserve(charge_of(2))
    with pytest.raises(LedgerDamaged, match="is missing"):
        verify_ledger(path, head=head)
    assert verify_ledger(path).lines == 2  # alone, the file cannot tell


def test_an_open_ledger_notices_what_changes_under_it_and_goes_on_refusing(path):
    ledger = Ledger.create(path, RUN, UNLIMITED)
    ledger.reserve(charge_of(0))
    path.write_bytes(path.read_bytes() + b"{}\n")
    for use in (ledger.summary, lambda: ledger.reserve(charge_of(1)), ledger.summary):
        with pytest.raises(LedgerDamaged, match="line 3"):
            use()


def test_the_forger_of_these_tests_is_believed_if_nothing_is_forged(path):
    some_rounds(path)
    before = path.read_bytes()
    forge(path, lambda entries: None)
    assert path.read_bytes() == before
    forge(path, lambda entries: entries.pop())  # what a chain cannot show
    assert verify_ledger(path).lines == 5


FORGED = {
    "more noise reserved": lambda es: es[1]["charge"]["releases"][0].update(variance="10000"),
    "less Delta1": lambda es: es[1]["charge"]["releases"][0].update(l1=1.0),
    "no Delta2": lambda es: es[1]["charge"]["releases"][0].update(l2_squared=0, l1=0.0),
    "a chunk without a release": lambda es: es[1]["charge"]["releases"][0].update(chunks=[0]),
    "no chunks": lambda es: es[1]["charge"].update(variances=[], releases=[]),
    "more charged": lambda es: es[2]["facts"][0].update(charged="20000"),
    "less left": lambda es: es[2]["facts"][0].update(left="1"),
    "a stranger dropped": lambda es: es[2]["facts"][0].update(dropped=[1, 77]),
    "dropped twice": lambda es: es[2]["facts"][0].update(dropped=[1, 1]),
    "another scheme": lambda es: es[1]["charge"].update(scheme="rebasing"),
    "clients in disorder": lambda es: es[1]["charge"].update(clients=[1, 0, 2, 3, 4, 5]),
    "no clients": lambda es: es[1]["charge"].update(clients=[]),
    "completed twice": lambda es: es.insert(3, dict(es[2])),
    "never reserved": lambda es: es.pop(1),
    "an index twice": lambda es: es[5]["charge"].update(index=0),
    "an index too large": lambda es: es[5]["charge"].update(index=2**64),
    "a hash that is none": lambda es: es[1]["charge"].update(parameters="xyz"),
    "a variance that is none": lambda es: es[1]["charge"].update(variances=["1/0", "9000"]),
    "a huge variance": lambda es: es[1]["charge"].update(variances=["1e99999999", "9000"]),
    "dropouts of a chunk less": lambda es: es[1]["charge"].update(dropped=[0]),
    "more dropouts than tolerated": lambda es: es[1]["charge"].update(dropped=[2, 0]),
    "dropouts that were others": lambda es: es[1]["charge"].update(dropped=[0, 0]),
    "no delta": lambda es: es[0].update(delta=0.0),
    "another format": lambda es: es[0].update(format="dordis ledger 3"),
    "an unknown key": lambda es: es[0].update(colour="red"),
    "an unknown kind": lambda es: es[1].update(kind="forgiven"),
    "opened again": lambda es: es.insert(1, dict(es[0])),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
def test_a_forged_line_is_noticed_by_what_it_says(path, change):
    some_rounds(path)
    forge(path, change)
    with pytest.raises(LedgerDamaged):
        verify_ledger(path)


@pytest.mark.parametrize("check", ["check_chained", "check_whole"])
def test_the_chain_is_kept_by_these_checks(path, monkeypatch, check):
    whole = some_rounds(path)
    monkeypatch.setattr(module, check, lambda *_: None)
    damaged = {"check_chained": [*whole[:3], *whole[5:]], "check_whole": [*whole, b"{"]}[check]
    path.write_bytes(b"".join(damaged))
    if check == "check_chained":
        assert verify_ledger(path).lines == 4
    else:
        with pytest.raises(LedgerDamaged, match="was altered"):
            verify_ledger(path)


def test_a_ledger_of_an_unknown_format_is_refused(path):
    Ledger.create(path, RUN, UNLIMITED)
    forge(path, lambda entries: entries[0].update(format="dordis ledger 1"))
    with pytest.raises(LedgerDamaged, match="was altered"):
        verify_ledger(path)


# Other processes


PREAMBLE = (
    "import os, sys, pathlib\n"
    "from dordis.errors import BudgetExceeded\n"
    "from dordis.ledger.ledger import Ledger\n"
    "from tests.ledger import charged_rounds as rounds\n"
    "ledger = Ledger.open(pathlib.Path(sys.argv[1]))\n"
    "write = os.write\n"
    "say = lambda text: write(1, f'{text}\\n'.encode())\n"
)
"""What lines in another process have: `ledger`, `rounds`, and `say`, which is heard at once."""


def command(code, *arguments):
    return [sys.executable, "-c", PREAMBLE + code, *map(str, arguments)]


def start(code, *arguments):
    """Run some lines in another process."""
    return subprocess.Popen(command(code, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_kill_9_between_reserve_and_complete_leaves_the_charge(path):
    Ledger.create(path, RUN, UNLIMITED)
    code = "ledger.reserve(rounds.charge_of()); say('reserved'); os.kill(os.getpid(), 9)"
    process = start(code, path)
    assert process.communicate()[0] == b"reserved\n"
    assert process.returncode == -signal.SIGKILL
    assert verify_ledger(path).clients == approx(dict.fromkeys(range(6), ONE_ROUND))


@pytest.mark.slow
def test_kill_9_never_loses_what_was_charged(path):
    """Kill a process before it writes a line, and before the line is on the disk."""
    Ledger.create(path, RUN, UNLIMITED)
    code = (
        "from tests.paused_processes import pause_before\n"
        "first = int(sys.argv[2])\n"
        "for i in range(first, first + 3): ledger.reserve(rounds.charge_of(i)); say(i)\n"
        "pause_before(os, 'write'); pause_before(os, 'fsync')\n"
        "ledger.reserve(rounds.charge_of(first + 3))\n"
    )
    charged = 0
    for point in ("write", "fsync"):
        process = start_paused(command(code, path, charged), point, stdout=subprocess.PIPE)
        process.kill()
        heard = process.communicate()[0].splitlines()
        assert list(map(int, heard)) == list(range(charged, charged + 3))
        charged += 3 if point == "write" else 4  # what was written is charged, and stays so
        assert verify_ledger(path).reserved == charged


@pytest.mark.slow
def test_two_processes_together_stay_within_the_budget(path):
    Ledger.create(path, RUN, Budget(spent([(SQUARED, DIM, LEAST)] * 9) * 1.0001, DELTA))
    code = (
        "charges = [rounds.charge_of(int(sys.argv[2]) + i) for i in range(20)]\n"
        "say('ready'); sys.stdin.readline()\n"
        "try:\n"
        "  for charge in charges: ledger.reserve(charge); say(charge.index)\n"
        "except BudgetExceeded: pass\n"
    )
    both = [start(code, path, first) for first in (0, 100)]
    for process in both:
        assert process.stdout.readline() == b"ready\n"
    for process in both:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    reserved = [len(process.communicate()[0].splitlines()) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(reserved) == verify_ledger(path).reserved == 9
    verify_ledger(path).check_budget()


def test_an_open_ledger_sees_what_another_adds(path):
    ledger = Ledger.create(path, RUN, Budget(ONE_ROUND * 1.1, DELTA))
    finish(Ledger.open(path), 0)
    assert ledger.summary().completed == 1
    with pytest.raises(BudgetExceeded):
        ledger.reserve(charge_of(1))


def test_the_errors_are_in_the_tree_and_no_bad_luck():
    for error in (BudgetExceeded, LedgerDamaged):
        assert issubclass(error, DordisError)
        assert not issubclass(error, RoundFailed | InputError)


def test_clients_that_come_are_counted_one_by_one_and_charged_at_the_noise_of_their_number(path, make):
    draft = extend(parameters_of(0, range(6)), Parameters)
    ledger, cost = make(), RoundCost(0.5, 1e-9)
    arrived = [4, 0, 3, 5, 1]
    for u in arrived:
        ledger.record_owner_charges(0, [u], cost)
    with pytest.raises(InputError, match="already"):
        ledger.record_owner_charges(0, [3], cost)
    with pytest.raises(InputError, match="already"):
        ledger.record_owner_charges(0, [2], RoundCost(0.25, 1e-9))
    survivors = (0, 1, 3, 4, 5)
    assert ledger.owner_charges()[RUN, 0].clients == survivors
    charge = Charge.from_parameters(draft, arrived=arrived)
    assert (charge.n_max, charge.clients, charge.plans) == (6, survivors, draft.plans)
    with pytest.raises(InputError, match="at most 4 clients"):
        ledger.reserve(structs.replace(charge, n_max=4))
    ledger.reserve(charge.after_dropouts(dict.fromkeys(range(len(draft.chunks)), 1)))
    contexts = [removal_context(draft.round, chunk, draft.digest) for chunk in range(len(draft.chunks))]
    kept = [
        (plan.variance_left(survivors, c), plan.charged_variance(survivors, c))
        for plan, c in zip(draft.plans, contexts, strict=True)
    ]
    ledger.complete(0, [Ended(survivors, *variances) for variances in kept])
    assert set(module.verify_ledger(path).clients) == set(survivors)


def test_counting_an_arrival_reads_one_line_however_many_came_before(tmp_path, monkeypatch):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", bytes(32), Budget(None, 1e-5))
    read, seen = LockedFile.read, []

    def measured(self, start=0):
        seen.append(len(found := read(self, start)))
        return found

    monkeypatch.setattr(LockedFile, "read", measured)
    for u in range(1, 301):
        ledger.record_owner_charges(0, [u], RoundCost(0.1, 1e-20))
    assert max(seen[20:]) < 2 * max(seen[:20])
    assert ledger.owner_charges()[bytes(32), 0].clients == tuple(range(1, 301))
    with pytest.raises(InputError, match="in the ledger already"):
        ledger.record_owner_charges(0, [300], RoundCost(0.1, 1e-20))


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_changed_line_is_noticed_at_the_next_arrival_or_before_the_disclosure(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, bytes(32), Budget(None, 1e-5))
    for u in (1, 2, 3):
        ledger.record_owner_charges(0, [u], RoundCost(0.1, 1e-20))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"clients":[%d]' % line, b'"clients":[9]')
    path.write_bytes(b"".join(lines))
    if line == 3:
        with pytest.raises(LedgerDamaged, match="lost or changed lines"):
            ledger.record_owner_charges(0, [4], RoundCost(0.1, 1e-20))
    else:
        ledger.record_owner_charges(0, [4], RoundCost(0.1, 1e-20))
    with pytest.raises(LedgerDamaged, match="lost or changed lines"):
        ledger.check_budget(None)
