"""The protocol with two helpers of docs/extending_protocol.md: sums, noise, ledger and restarts, with any arrivals."""

import itertools
import json
from fractions import Fraction
from functools import partialmethod

import numpy as np
import pytest
from msgspec.structs import replace

from dordis import wire
from dordis.config.reading import read_config
from dordis.errors import (
    DecryptionFailed,
    InputError,
    ParametersRefused,
    ProtocolError,
    RoundFailed,
    TooFewClients,
    UnexpectedRequest,
)
from dordis.ledger import ledger as ledgers
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, OpenCall, Role
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import client_noise
from dordis.records import run_records
from dordis.records.run_records import LEDGER
from dordis.report.page import write_report
from dordis.rounds.arrivals import Arrival, ArrivalStore
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.runs.job import require_cohort
from dordis.selection.selection import EveryClient
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.run import prepare
from tests.protocols.shared_example import BITS, CODE, EXAMPLE, N_MAX, N_MIN, SHARED, parties, play

SETTINGS = (
    "app.server=tests.simulation.toys:Server",
    "app.client=tests.simulation.toys:Client",
    "federation.clients=30",
    "federation.per_round=14",
    "federation.rounds=2",
    "federation.arrival=open",
    "privacy.delta=1e-5",
    "protocol.use=shared_example:SHARED",
    "protocol.mode=semi-honest",
    "protocol.tolerance=6",
    "performance.threads=1",
)


def simulated(*more):
    return prepare(read_config(keys=[*SETTINGS, *more]))


def test_the_protocol_is_short_and_touches_nothing_else():
    assert len(CODE.splitlines()) <= 150
    assert SHARED.stages == ("Contribute",)
    assert [request.role for request in SHARED.requests] == [Role.HELPER, Role.CLIENT, Role.HELPER]
    assert not SHARED.has_cohort


@pytest.mark.parametrize("count", range(N_MIN, N_MAX + 1))
def test_without_noise_the_sum_is_the_sum_of_the_inputs(count):
    parameters, clients, inputs, helpers = parties(Scheme.NONE, range(1, count + 1))
    outputs = play(parameters, clients, helpers)
    total = np.concatenate([output.total for output in outputs])
    assert (total == sum(inputs.values()) % 2**BITS).all()
    assert all(output.survivors == tuple(inputs) for output in outputs)


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
@pytest.mark.parametrize("count", range(N_MIN, N_MAX + 1))
def test_the_noise_left_is_the_planned_one_for_every_number_of_arrivals(scheme, count):
    """Bit for bit: the sum is the inputs and those components of the clients' noise that are not due."""
    parameters, clients, inputs, helpers = parties(scheme, range(1, count + 1))
    outputs = play(parameters, clients, helpers)
    for chunk, output in enumerate(outputs):
        plan, due = parameters.plans[chunk], parameters.due(chunk, inputs)
        expected, left = sum(vector[parameters.chunks[chunk]] for vector in inputs.values()), Fraction(0)
        for u, client in clients.items():
            base, *removable = client_noise(parameters, chunk, client.issued(chunk))
            kept = [k for k in range(len(removable)) if k not in due[u]]
            expected = expected + base + sum((removable[k] for k in kept), np.zeros_like(base))
            left += plan.base[0] + sum((plan.removable[k] for k in kept), Fraction(0))
        assert (output.total == expected % 2**BITS).all()
        assert output.left == left
        assert not output.stayed
        target = plan.kappa * plan.variance
        assert target <= left <= target * (1 + Fraction(1, 1000))


def test_too_few_arrivals_end_the_round_and_further_ones_are_not_asked():
    parameters, clients, _, helpers = parties(came=range(1, N_MIN))
    with pytest.raises(TooFewClients):
        play(parameters, clients, helpers)
    parameters, clients, _, helpers = parties(came=range(1, N_MAX + 1))
    opened = []

    def exchange(requests):
        if isinstance(requests, OpenCall):
            opened.append(requests.most)
            return ((u, client.handle(requests.request)) for u, client in clients.items())
        return [(h, helpers[h].handle(request)) for h, request in requests.items()]

    play(parameters, clients, helpers, exchange)
    assert opened == [N_MAX]


ONE_ROUND = ("simulation.fidelity=full", "federation.rounds=1", "simulation.dropout.kind=none")


def closing_run(tmp_path, monkeypatch, seconds):
    """Start a run to which one client comes each second, and whose exchange finds that time is up after some."""
    clock, made = itertools.count(), LocalExchange.__init__
    timed = partialmethod(made, time_is_up=lambda: next(clock) >= seconds)
    monkeypatch.setattr(LocalExchange, "__init__", timed)
    return simulated(*ONE_ROUND).start(tmp_path, "")


def test_a_round_is_closed_when_time_is_up_and_sums_those_who_came(tmp_path, monkeypatch):
    run = closing_run(tmp_path, monkeypatch, 9)
    run.complete()
    (record,) = run_records.load_run(run.records.path).rounds
    assert record.survivors == (9,)  # of 14 at most, and 8 at least
    counted = ledgers.Ledger.open(run.records.path / LEDGER, run.records.id).owner_charges()
    assert counted[run.records.id, 0].clients == record.clients


def test_a_round_that_too_few_came_to_in_time_is_not_opened(tmp_path, monkeypatch):
    run = closing_run(tmp_path, monkeypatch, 7)
    with pytest.raises(RoundFailed):
        run.complete()
    summary = ledgers.verify_ledger(run.records.path / LEDGER, run=run.records.id)
    assert (summary.completed, summary.reserved) == (0, 0)


def test_a_server_that_stops_after_time_was_up_takes_no_more(tmp_path, monkeypatch):
    began = closing_run(tmp_path, monkeypatch, 9)
    reserve = ledgers.Ledger.reserve

    def stop(self, charge):
        raise Stopped

    monkeypatch.setattr(ledgers.Ledger, "reserve", stop)
    with pytest.raises(Stopped):
        began.complete()
    path = began.records.path
    del began
    monkeypatch.undo()
    assert ledgers.Ledger.reserve is reserve
    resumed = simulated(*ONE_ROUND).resume(path)
    resumed.complete()
    assert run_records.load_run(path).rounds[0].survivors == (9,)


def test_helpers_see_no_seed_of_the_other_and_open_one_u3():
    parameters, clients, inputs, helpers = parties()
    seen = {}

    def exchange(requests):
        if isinstance(requests, OpenCall):
            return [(u, client.handle(requests.request)) for u, client in clients.items()]
        seen.update(requests)
        return [(h, helpers[h].handle(request)) for h, request in requests.items()]

    play(parameters, clients, helpers, exchange)
    request = seen[ClientId(1)]
    for client in clients.values():
        assert not any(seed in wire.encode(request) for seed in client.state.seeds.values())
    fewer = dict(list(request.boxes.items())[:-1])
    with pytest.raises(ProtocolError, match="another U3"):
        helpers[ClientId(1)].handle(type(request)(parameters, 0, fewer))
    swapped = type(request)(parameters, 0, request.boxes)
    with pytest.raises(DecryptionFailed):
        type(helpers[ClientId(1)])(ClientId(2), secret=bytes([1]) * 32).handle(swapped)
    assert len(inputs) == N_MAX


def test_a_contribution_without_a_box_or_with_a_cut_vector_is_refused():
    parameters, clients, _, _ = parties()
    setup = SHARED.server(parameters, {}, {}, None).setup
    good = clients[ClientId(1)].handle(EXAMPLE.Contribute(parameters))
    setup.check(ClientId(1), good)
    for bad in (
        type(good)(good.key, {1: good.boxes[1]}, good.vector),
        type(good)(good.key, good.boxes, good.vector[:-1]),
        EXAMPLE.Opened({}, b""),
    ):
        with pytest.raises(ProtocolError):
            setup.check(ClientId(1), bad)


# Whole runs


@pytest.fixture
def run(tmp_path):
    def complete_run(*more):
        run = simulated(*more).start(tmp_path, "")
        run.complete()
        return run

    return complete_run


@pytest.mark.parametrize("rate", [0.0, 0.45, 0.6])
def test_full_and_ideal_runs_have_the_same_arrivals_noise_and_charges(run, rate):
    dropout = ("simulation.dropout.kind=rate", f"simulation.dropout.rate={rate}", "simulation.seed=5")
    found = []
    for fidelity in ("full", "ideal"):
        done = run(f"simulation.fidelity={fidelity}", *dropout)
        stored = run_records.load_run(done.records.path)
        summary = ledgers.verify_ledger(done.records.path / LEDGER, run=done.records.id)
        rounds = [(one.index, one.clients, one.survivors, one.left, one.charged) for one in stored.rounds]
        found.append((rounds, summary.clients, summary.completed))
    assert found[0] == found[1]
    rounds, spent, completed = found[0]
    assert completed == 2
    arrived = {u for _, clients, *_ in rounds for u in clients}
    assert spent.keys() == arrived
    assert all(epsilon > 0 for epsilon in spent.values())
    assert all(8 <= len(clients) <= 14 for _, clients, *_ in rounds)
    if not rate:
        assert [survivors for _, _, survivors, *_ in rounds] == [(14,), (14,)]


def test_each_arrival_is_counted_before_the_next_and_a_report_is_written(run):
    done = run("simulation.fidelity=full")
    entries = map(json.loads, (done.records.path / LEDGER).read_text().splitlines())
    counted = [entry for entry in entries if entry.get("kind") == "counted" and entry["index"] == 0]
    assert [len(entry["clients"]) for entry in counted] == [1] * 14
    ledger = ledgers.Ledger.open(done.records.path / LEDGER, done.records.id)
    record = run_records.load_run(done.records.path).rounds[0]
    assert ledger.owner_charges()[done.records.id, 0].clients == record.clients == ledger.round(0).charge.clients
    assert ledger.round(0).charge.n_max == 14
    assert done.records.manifest.selection == "open"
    assert "shared" in write_report([done.records.path], None).read_text()


class Stopped(BaseException):
    """The machine stops."""


@pytest.mark.parametrize("after", [1, 7, 13])
def test_a_server_that_stops_between_arrivals_goes_on_with_those_it_has(tmp_path, monkeypatch, after):
    job = simulated("simulation.fidelity=full")
    began, stored, add = job.start(tmp_path, ""), [], ArrivalStore.add

    def stop_after(self, arrival):
        add(self, arrival)
        stored.append(arrival)
        if len(stored) == after:
            raise Stopped

    monkeypatch.setattr(ArrivalStore, "add", stop_after)
    with pytest.raises(Stopped):
        began.complete()
    path, first = began.records.path, [int(arrival.client) for arrival in stored]
    del began
    monkeypatch.setattr(ArrivalStore, "add", lambda self, arrival: (add(self, arrival), stored.append(arrival)))
    resumed = simulated("simulation.fidelity=full").resume(path)
    resumed.complete()
    record = run_records.load_run(path).rounds[0]
    assert record.index == 0
    assert set(first) < set(record.clients)
    assert len(record.clients) == 14
    clients = [int(arrival.client) for arrival in stored[:14]]
    assert len(set(clients)) == 14  # nobody contributed twice
    assert ledgers.verify_ledger(path / LEDGER, run=resumed.records.id).completed == 2


@pytest.mark.parametrize("stop", ["before it stores", "before it counts"])
def test_a_server_that_stops_within_an_arrival_finishes_the_round_without_a_client_that_never_returns(
    tmp_path, monkeypatch, stop
):
    began, met = simulated("simulation.fidelity=full").start(tmp_path, ""), []
    add, count, handle = ArrivalStore.add, PrivacyGate.admit_arrival, SHARED.client.handle

    def stop_at_seventh(work):
        def stopping(self, arrival):
            met.append(getattr(arrival, "client", arrival))
            if len(met) == 7:
                raise Stopped
            work(self, arrival)

        return stopping

    if stop == "before it stores":
        monkeypatch.setattr(ArrivalStore, "add", stop_at_seventh(add))
    else:
        monkeypatch.setattr(PrivacyGate, "admit_arrival", stop_at_seventh(count))
    with pytest.raises(Stopped):
        began.complete()
    path, gone = began.records.path, met[-1]
    del began

    def never_return(self, request):
        if self.me == gone:
            raise ParametersRefused("it is gone")
        return handle(self, request)

    monkeypatch.setattr(ArrivalStore, "add", add)
    monkeypatch.setattr(PrivacyGate, "admit_arrival", count)
    monkeypatch.setattr(SHARED.client, "handle", never_return)
    resumed = simulated("simulation.fidelity=full").resume(path)
    resumed.complete()
    assert len(run_records.load_run(path).rounds[0].clients) == 14
    assert ledgers.verify_ledger(path / LEDGER, run=resumed.records.id).completed == 2


def test_a_server_that_stops_after_the_last_arrival_opens_the_same_u3(tmp_path, monkeypatch):
    job = simulated("simulation.fidelity=full", "federation.clients=20")
    began = job.start(tmp_path, "")
    reserve, seen = ledgers.Ledger.reserve, []

    def stop(self, charge):
        reserve(self, charge)
        seen.append(charge)
        raise Stopped

    monkeypatch.setattr(ledgers.Ledger, "reserve", stop)
    with pytest.raises(Stopped):
        began.complete()
    path = began.records.path
    del began
    monkeypatch.setattr(ledgers.Ledger, "reserve", reserve)
    resumed = simulated("simulation.fidelity=full", "federation.clients=20").resume(path)
    resumed.complete()
    assert run_records.load_run(path).rounds[0].clients == seen[0].clients


# The gate and the store


def test_an_arrival_is_checked_stored_and_counted_before_it_is_acknowledged(tmp_path, monkeypatch):
    events = []
    add, count = ArrivalStore.add, PrivacyGate.admit_arrival
    monkeypatch.setattr(ArrivalStore, "add", lambda self, a: (add(self, a), events.append(("stored", a.client))))
    monkeypatch.setattr(
        PrivacyGate, "admit_arrival", lambda self, u: (count(self, u), events.append(("counted", u)))[0]
    )
    handle = SHARED.client.handle
    monkeypatch.setattr(SHARED.client, "handle", lambda self, r: (handle(self, r), events.append(("made", self.me)))[0])
    simulated("simulation.fidelity=full", "federation.rounds=1").start(tmp_path, "").complete()
    assert len(events) == 3 * 14
    for place in range(0, len(events), 3):
        u = events[place][1]
        assert events[place : place + 3] == [("made", u), ("stored", u), ("counted", u)]


def test_without_the_count_at_arrival_nothing_is_disclosed(tmp_path, monkeypatch):
    monkeypatch.setattr(PrivacyGate, "admit_arrival", lambda self, u: None)
    for fidelity in ("full", "ideal"):
        with pytest.raises(UnexpectedRequest, match="before any upload was counted"):
            simulated(f"simulation.fidelity={fidelity}").start(tmp_path, "").complete()


def test_a_record_that_was_cut_short_is_dropped_and_others_are_there(tmp_path):
    store = ArrivalStore(tmp_path / "arrivals")
    store.begin(Arrival(ClientId(0), b"the round", b""))
    for u in (1, 2):
        store.add(Arrival(ClientId(u), b"frame", bytes(100)))
    whole = (tmp_path / "arrivals").read_bytes()
    (tmp_path / "arrivals").write_bytes(whole[:-7])
    again = ArrivalStore(tmp_path / "arrivals")
    assert [arrival.client for arrival in again.arrivals] == [1]
    again.add(Arrival(ClientId(3), b"frame", b""))
    again.begin(Arrival(ClientId(0), b"the round", b""))
    assert [arrival.client for arrival in again.arrivals] == [1, 3]
    assert not again.is_closed
    again.close()
    assert ArrivalStore(tmp_path / "arrivals").is_closed
    again.begin(Arrival(ClientId(0), b"the next round", b""))
    assert not again.clients
    assert not again.is_closed


# What does not go together


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("protocol.use=secagg", r"fixes the list of clients: set federation\.arrival to 'invited'"),
        ("federation.arrival=invited", r"nobody verifies the selection .* set federation\.arrival to 'open'"),
        ("protocol.threshold=9", r"no quorum of clients: leave protocol\.threshold out"),
    ],
)
def test_arrival_and_protocol_go_together(setting, said):
    with pytest.raises(InputError, match=said):
        simulated(setting)


def test_deployments_refuse_a_protocol_without_a_cohort():
    job = simulated().job
    with pytest.raises(InputError, match="which a deployment does not support yet"):
        require_cohort(job, "a deployment")


def test_ray_refuses_a_protocol_without_a_cohort():
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with pytest.raises(InputError, match="which Ray does not support yet"):
        simulated("simulation.engine=ray")


def test_owners_refuse_a_list_of_clients_and_a_smaller_least_number():
    job = simulated().job
    selection = job.selection_rule.selection(None, bytes(32), None)
    good = job.design.example()
    selection.verify(good, {}, ClientId(1))
    listed = agree_on(run=bytes(32), index=0, clients=range(1, 15), threshold=8, bits=16, ends=[4])
    with pytest.raises(ParametersRefused, match="lists its clients"):
        selection.verify(listed, {}, ClientId(1))
    with pytest.raises(ParametersRefused, match="least cohort"):
        selection.verify(replace(good, n_min=3), {}, ClientId(1))
    with pytest.raises(ParametersRefused, match="least cohort"):
        EveryClient(frozenset({ClientId(1)}), bytes(32), least=good.n_min + 1).verify(good, {}, ClientId(1))
