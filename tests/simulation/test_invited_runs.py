"""Whole simulated runs over the assisted protocol with scheduled clients: by the public window, by lot, or drawn."""

import re

import numpy as np
import pytest

from dordis.config.reading import read_config
from dordis.errors import InputError, ProtocolError, TooFewHelpers
from dordis.ledger import ledger as ledgers
from dordis.protocol import ClientId
from dordis.protocols.assisted import AssistedHelper
from dordis.records import run_records
from dordis.records.run_records import LEDGER
from dordis.report.page import write_report
from dordis.rounds.invitation import Accepted
from dordis.runs.coordinator import Coordinator
from dordis.selection.colluders import vrf_quantile, window_quantile
from dordis.selection.selection import BalancedSelection, OpenArrival
from dordis.selection.vrf_selection import VrfSelection
from dordis.simulation.population import Identities
from dordis.simulation.run import prepare

RUN = bytes(range(32))
SETTINGS = (
    "app.server=tests.simulation.toys:Server",
    "app.client=tests.simulation.toys:Client",
    "federation.clients=30",
    "federation.per_round=14",
    "federation.rounds=4",
    "privacy.delta=1e-5",
    "protocol.use=assisted",
    "performance.threads=1",
    "simulation.dropout.kind=rate",
    "simulation.dropout.rate=0.0",
)
LOTS = ("federation.selection=vrf", "federation.participations=4", "protocol.tolerance=7")
DRAWN = ("federation.selection=uniform", "protocol.mode=semi-honest")


def simulated(*more):
    return prepare(read_config(keys=[*SETTINGS, *more]))


class FixedRun:
    """A simulated run with a fixed run id, so that its schedule is the same at any fidelity."""

    def __init__(self, *more):
        job = simulated(*more)
        self.job, identities = job.job, Identities(bytes(32), job.ids, job.job.protocol.helper_ids)
        self.home = job.home(identities)
        rule = self.job.selection_rule
        self.selection = rule.selection(self.home.registry, RUN, self.home.beacon, self.home.selection_seed)

    def rounds(self, count=4):
        """Run rounds; return the finished ones, with the mean of each."""
        coordinator = Coordinator(
            RUN, self.job.app, self.job.design, self.selection, self.home.open(RUN, self.selection, {}), None,
            registry=self.home.root, protocol="assisted", tries=20,
        )  # fmt: skip
        return [(done, np.array(self.job.app.mean)) for done in coordinator.rounds(count)]

    def has_won(self, u, index):
        """Tell whether the lot of a client is below the threshold."""
        return self.selection.draw(self.home.identities.keys[ClientId(u)].vrf, index) is not None

    def updates(self, clients):
        return [self.home.clients(ClientId(u)).prepare_data(None, None) for u in clients]


@pytest.mark.parametrize("selection", [(), LOTS, DRAWN], ids=["balanced", "vrf", "uniform"])
def test_full_and_ideal_rounds_sum_the_same_scheduled_clients(selection):
    """Without noise the mean is that of the plaintext updates, but for their rounding."""
    found = []
    for fidelity in ("full", "ideal"):
        run = FixedRun(*selection, "privacy.noise.kind=none", f"simulation.fidelity={fidelity}")
        rounds = run.rounds()
        for done, mean in rounds:
            expected = np.mean(run.updates(done.record.clients), axis=0)
            np.testing.assert_allclose(mean, expected, atol=1e-3)
        found.append([(done.record.index, done.record.clients, done.record.survivors) for done, _ in rounds])
        if isinstance(run.selection, BalancedSelection):
            assert [set(done.record.clients) for done, _ in rounds] == [run.selection.window(i) for i in range(4)]
        if isinstance(run.selection, VrfSelection):
            assert all(run.has_won(u, done.record.index) for done, _ in rounds for u in done.record.clients)
    assert found[0] == found[1]
    assert all(7 <= len(clients) <= 14 for _, clients, _ in found[0])


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
@pytest.mark.parametrize("mode", ["malicious", "semi-honest"])
def test_the_noise_left_is_the_planned_one_for_any_number_of_scheduled_clients_that_come(mode, fidelity):
    dropout = ("simulation.dropout.rate=0.4", "federation.closing.clients=10")
    run = FixedRun(f"protocol.mode={mode}", f"simulation.fidelity={fidelity}", *dropout)
    counts = set()
    for done, _ in run.rounds():
        record = done.record
        assert set(record.clients) <= run.selection.window(record.index)
        assert record.charged >= record.wanted
        assert record.left == pytest.approx(float(run.job.design.setting.kappa) * record.wanted, rel=1e-6)
        counts.add(len(record.clients))
    assert max(counts) <= 10
    assert min(counts) >= 7


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_epsilon_is_that_of_secagg_with_the_same_schedule(tmp_path, fidelity):
    """Each run has clients that take part twice, once or never by the same cap."""
    common = ("protocol.tolerance=4", f"simulation.fidelity={fidelity}")
    results = []
    for use in ("assisted", "secagg"):
        job = simulated(*common, f"protocol.use={use}")
        design, setting = job.job.design, job.job.design.setting
        run = job.start(tmp_path, "")
        outcome = run.complete()
        summary = ledgers.verify_ledger(run.records.path / LEDGER, run=run.records.id)
        planned = design.cap, design.allowed, design.plan.variance, setting.colluders, setting.T
        results.append((planned, outcome.rounds, outcome.epsilon, summary.completed))
    assert results[0] == results[1]
    assert results[0][0][0] == 2  # ceil(4 * 14 / 30)


def test_t_c_is_the_quantile_of_a_window_and_not_the_registry():
    many = ("federation.clients=1000", "federation.per_round=100", "protocol.tolerance=30", "protocol.colluders=100")
    expected = window_quantile(1000, 100, 100, "malicious")
    balanced = simulated(*many, "deployment.beacon=published.txt").job.design.setting
    assert balanced.colluders == expected < 100
    lots = simulated(*many, "federation.selection=vrf").job.design.setting
    assert lots.colluders == vrf_quantile(1000, 100, 100, "malicious") < 100
    assert simulated(*many[:3], "protocol.colluders=20").job.design.setting.colluders == 20  # no beacon: all of them
    with pytest.raises(InputError, match="100 colluders cannot be tolerated"):
        simulated(*many, "federation.arrival=open")
    assert simulated().job.design.setting.colluders == 1  # has a default: the server does not choose whom to admit


@pytest.mark.parametrize("selection", [(), LOTS], ids=["balanced", "vrf"])
def test_a_client_that_is_not_scheduled_refuses_its_invitation(selection):
    run = FixedRun(*selection)
    clients = run.home.create_clients(RUN, run.selection)
    invitations = []
    runner = run.home.open(RUN, run.selection, {})
    gather = runner.gather
    runner.gather = lambda invitation, watch: (invitations.append(invitation), gather(invitation, watch))[1]
    coordinator = Coordinator(
        RUN, run.job.app, run.job.design, run.selection, runner, None, registry=run.home.root, protocol="assisted"
    )
    scheduled = set(coordinator.round(1, 0).record.clients)
    other = next(u for u in map(ClientId, range(1, 31)) if u not in scheduled)
    invite = invitations[0].invite
    if selection:
        losers = [u for u in map(ClientId, range(1, 31)) if not run.has_won(u, 0)]
        assert losers
        assert all(clients[u].handle(invite) == Accepted(selected=False, has_model=False) for u in losers)
        return
    with pytest.raises(ProtocolError, match=f"client {other} was invited to round 0, for which it is not scheduled"):
        clients[other].handle(invite)


class Careless(BalancedSelection):
    """A schedule whose clients, and whose server, do not mind whose turn it is."""

    def candidates(self, index, available):
        return tuple(sorted(available))

    def claim(self, invite, me, vrf_key):
        return b""

    def verify_client(self, index, client, proof):
        pass


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_server_admits_nobody_that_is_not_scheduled(fidelity, monkeypatch):
    """Clients that do not mind come first; the server's own check leaves only those whose turn it is."""
    run = FixedRun("privacy.noise.kind=none", f"simulation.fidelity={fidelity}")
    honest, careless = (
        run.selection,
        Careless(*(getattr(run.selection, name) for name in ("registry", "run", "count")), 7),
    )
    monkeypatch.setattr(Careless, "verify_client", BalancedSelection.verify_client)
    run.selection = careless
    ((done, _),) = run.rounds(1)
    assert set(done.record.clients) == honest.window(0)


def test_helpers_refuse_what_a_careless_server_admitted(monkeypatch):
    run = FixedRun("privacy.noise.kind=none", "federation.tries=1")
    seen, opening = [], AssistedHelper.open

    def watched(self, request):
        self._verify_client = honest.verify_client
        try:
            return opening(self, request)
        except ProtocolError as error:
            seen.append(str(error))
            raise

    honest = run.selection
    run.selection = Careless(honest.registry, honest.run, honest.count, 7)
    monkeypatch.setattr(AssistedHelper, "open", watched)
    with pytest.raises(TooFewHelpers):
        run.rounds(1)
    assert all(re.search(r"contributes to round \d+, for which it is not scheduled", error) for error in seen)
    assert len(seen) >= 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("federation.selection=uniform",), "which can be verified"),
        (("federation.participations=1",), "participations is for"),
        (("protocol.threshold=8",), "no quorum of clients"),
        (("federation.closing.clients=6",), "has to lie in 7..14"),
        (("protocol.use=secagg", "federation.closing.clients=8"), "list no clients"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        simulated(*settings)


def test_participations_are_bounded_by_the_schedule_and_only_with_open_arrival_hashed():
    assert not simulated().job.design.example().participations
    assert not simulated(*LOTS).job.design.example().participations
    opened = simulated("federation.arrival=open", "protocol.colluders=1").job
    assert opened.design.example().participations == 2
    assert isinstance(opened.selection_rule.selection(None, RUN, None), OpenArrival)


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_run_is_resumed_with_the_same_schedule(tmp_path, fidelity):
    keys = (f"simulation.fidelity={fidelity}",)
    first = simulated(*keys).start(tmp_path, "")
    next(first.rounds())
    path = first.records.path
    del first
    again = simulated(*keys).resume(path)
    assert again.complete().rounds == 4
    rounds = run_records.load_run(path).rounds
    attended = [u for one in rounds for u in one.clients]
    assert max(map(attended.count, attended)) <= 2
    assert ledgers.verify_ledger(path / LEDGER, run=again.records.id).completed == 4


def test_the_statement_says_how_clients_are_selected(tmp_path):
    keys = ("simulation.fidelity=ideal", "federation.rounds=1")
    drawn = simulated(*keys, "deployment.beacon=published.txt", "protocol.colluders=2").start(tmp_path, "")
    drawn.complete()
    page = write_report([drawn.records.path], None).read_text()
    assert re.search(r"up to 2 colluding clients of the 30 registered ones and 1 of 4 helpers", page)
    assert "public randomness that was unknown when the run id was fixed draws the clients" in page
    opened = simulated(*keys, "federation.arrival=open", "protocol.colluders=2").start(tmp_path, "")
    opened.complete()
    page = write_report([opened.records.path], None).read_text()
    assert "Any registered client may contribute, so the server can admit all colluders to one round." in page
