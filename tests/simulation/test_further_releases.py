"""A second further release, declared by an application of this module alone: protocols and ledger know nothing of it.

Each client answers some questions and releases how many answers are right, beside its update.
"""

import hashlib
import html
import itertools
import math
from dataclasses import replace
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.ledger.ledger import verify_ledger
from dordis.ledger.round_charge import Charge
from dordis.pipeline import executor as drive
from dordis.privacy import accounting, scaling
from dordis.privacy.accounting import SkellamSum
from dordis.privacy.clipping import CLIPPING_BIT
from dordis.privacy.encoding import Grid
from dordis.privacy.further_releases import FurtherRelease, FurtherValue
from dordis.privacy.mechanisms.central_and_local_noise import NoMechanism
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.skellam_noise import SKELLAM
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.noise_addition_and_removal import PrivateServer
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.secagg import SecAggServer
from dordis.report.page import write_report
from dordis.rounds.invitation import Terms, check_terms_kept
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.run import prepare
from tests.protocols.rounds import make_client, registry
from tests.simulation import toys
from tests.simulation.whole_runs import settings_of

RIGHT, BY_CLASS, QUESTIONS, CLASSES = "right answers", "right answers by class", 20, 4


def right_answers(place):
    """Return how many of its questions the client at a place answers right, class by class."""
    return np.random.default_rng(place).multinomial(QUESTIONS // 2 + place % 5, np.ones(CLASSES) / CLASSES)


class Server(toys.Server):
    further = (FurtherValue(RIGHT, 0.2, bound=QUESTIONS), FurtherValue(BY_CLASS, 0.1, CLASSES, QUESTIONS))
    seen: ClassVar[list] = []

    def use_output(self, round, aggregate):
        super().use_output(round, aggregate)
        type(self).seen.append(aggregate)

    def evaluate(self):
        return {"right answers per client": float(self.seen[-1].further[RIGHT].mean[0])}


class Client(toys.Client):
    def __init__(self, place, **options):
        super().__init__(place, **options)
        self._right = right_answers(place)

    def further_values(self, round, model):
        return {RIGHT: self._right.sum(), BY_CLASS: self._right}


class Silent(toys.Client):
    """A client of an application that knows nothing of the values."""


KEYS = (
    "app.server=tests.simulation.test_further_releases:Server",
    "app.client=tests.simulation.test_further_releases:Client",
    "federation.clients=12",
    "federation.per_round=12",
    "privacy.clip={kind='quantile', start=1.0, share=0.1}",
    "privacy.epsilon=20.0",
)


@pytest.fixture
def no_noise():
    """Draw no noise, and plan and charge all of it: what is left of a sum is what the clients gave."""
    drawn = SKELLAM.add
    object.__setattr__(SKELLAM, "add", lambda vector, seed, variance, subtract=False: None)
    yield
    object.__setattr__(SKELLAM, "add", drawn)


def run(tmp_path, *keys):
    """Run all rounds; return the run and what the server was given."""
    Server.seen = []
    started = prepare(settings_of(*KEYS, *keys)).start(tmp_path, "")
    records = [finished.record for finished in started.rounds()]
    return started, records, Server.seen


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
@pytest.mark.parametrize("use", ["secagg", "plaintext"])
def test_without_noise_the_sums_are_those_of_the_clients(tmp_path, no_noise, fidelity, use):
    mode = "semi-honest" if use == "plaintext" else "malicious"
    keys = (f"simulation.fidelity={fidelity}", f"protocol.use={use}", f"protocol.mode={mode}", "federation.rounds=1")
    _, records, (aggregate,) = run(tmp_path, *keys, "simulation.dropout.kind=none")
    right = [right_answers(place) for place in range(12)]
    assert aggregate.further[RIGHT].total.tolist() == [int(np.sum(right))]
    assert aggregate.further[BY_CLASS].total.tolist() == np.sum(right, axis=0).tolist()
    assert list(aggregate.further) == [CLIPPING_BIT, RIGHT, BY_CLASS]
    assert len(records[0].survivors) == 1 + 3


def test_through_secagg_the_sums_are_exact_whoever_drops_out():
    """A round without any noise: the sums over U3 are those of whole numbers in plain Python."""
    further = [FurtherRelease(RIGHT, 7, bound=QUESTIONS), FurtherRelease(BY_CLASS, 5, CLASSES, QUESTIONS)]
    mechanism = NoMechanism(Grid(16, 16, 100.0, 24))
    parameters = agree_on(
        run=bytes(32), index=0, clients=range(1, 9), threshold=6, tolerance=2, bits=24, ends=[16, 17, 21],
        mode=MALICIOUS, encoding=encoding_of(mechanism, bytes(32), further),
    )  # fmt: skip
    private = DistributedDP.from_parameters(parameters, 16)
    values = {u: {RIGHT: right_answers(u).sum(), BY_CLASS: right_answers(u)} for u in parameters.clients}
    clients = {u: make_client(parameters, u, private.encode(np.ones(16), values=values[u])) for u in parameters.clients}
    lost = {(3, 1), (4, 2)}
    exchange = LocalExchange(
        clients, lambda u, m: type(m).__name__ == "CollectInput" and (int(u), getattr(m, "chunk", -1)) in lost
    )
    outputs = drive.run(PrivateServer(SecAggServer(parameters, registry(parameters)), parameters), exchange)
    aggregate = private.decode(outputs)
    for chunk, name in ((1, RIGHT), (2, BY_CLASS)):
        there = [u for u in parameters.clients if (int(u), chunk) not in lost]
        assert list(outputs[chunk].survivors) == there
        expected = sum(np.atleast_1d(values[u][name]) for u in there)
        assert aggregate.further[name].total.tolist() == expected.tolist()
        assert aggregate.further[name].count == len(there)
        np.testing.assert_allclose(aggregate.further[name].mean, expected / len(there))


def test_each_release_has_its_own_noise_from_its_own_seeds(tmp_path):
    """4,096 coordinates of zeros are nothing but noise: of the planned variance, and unlike that of the others."""
    length, variances = 4096, [30, 900, 9000]
    further = [FurtherRelease("first", 1, length), FurtherRelease("second", 3, length)]
    mechanism = DSkellam(Grid(length, length, 50.0, 24), 1.0, scaling.sensitivity(50.0, 1.0, length).squared)
    parameters = agree_on(
        run=bytes(32), index=0, clients=range(1, 7), threshold=5, tolerance=1, bits=24, scheme=Scheme.SINGLE,
        ends=[length, 2 * length, 3 * length], variances=variances, encoding=encoding_of(mechanism, bytes(32), further),
    )  # fmt: skip
    private = DistributedDP.from_parameters(parameters, length)
    drawn = itertools.count()

    def entropy(size):
        return hashlib.shake_256(b"noise%d" % next(drawn)).digest(size)

    clients = {u: make_client(parameters, u, private.encode(np.zeros(length), entropy)) for u in parameters.clients}
    exchange = LocalExchange(clients, lambda u, m: int(u) == 2 and type(m).__name__ == "CollectInput")
    outputs = drive.run(PrivateServer(SecAggServer(parameters, registry(parameters)), parameters), exchange)
    found = [np.array(output.total, np.int64) for output in outputs]
    found = [np.where(x >= 2**23, x - 2**24, x) for x in found]
    for output, noise in zip(outputs[1:], found[1:], strict=True):  # the update has its rounding error, too
        left = float(output.left)
        deviation = left * math.sqrt((2 + 1 / left) / length)
        assert abs(np.mean(noise.astype(float) ** 2) - left) < 5 * deviation
    assert [float(output.left) / variance for output, variance in zip(outputs, variances, strict=True)] == [5 / 4] * 3
    for one, other in itertools.combinations(found, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(length)


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_each_release_is_charged_and_the_stated_epsilon_covers_all(tmp_path, fidelity):
    started, records, seen = run(tmp_path, f"simulation.fidelity={fidelity}")
    design = started.job.design
    summary = verify_ledger(started.records.path / "ledger.jsonl")
    charge = Charge.from_parameters(design.example())
    events = []
    for release, variance, length in zip(
        design.example().encoding.further_releases, charge.variances[1:], (1, 1, CLASSES), strict=True
    ):
        most = release.scale * (1 if release.name == CLIPPING_BIT else QUESTIONS)
        events.append(SkellamSum(most**2, min(most**2, math.sqrt(length) * most), float(variance)))
    update = charge.releases[0]
    events.append(SkellamSum(update.l2_squared, update.l1, float(charge.variances[0])))
    whole = accounting.Repeated(accounting.Composed(tuple(events)), design.cap)
    bare = accounting.Repeated(events[-1], design.cap)
    stated = summary.epsilon
    assert stated == pytest.approx(accounting.epsilon(whole, design.delta), rel=1e-4)
    assert stated > 1.05 * accounting.epsilon(bare, design.delta)
    assert stated <= 20.0
    assert records[-1].epsilon == pytest.approx(stated)
    assert len(seen) == len(records) == 3
    deviation = float(started.job.design.plan.find_further(RIGHT).deviation(design.setting.kappa))
    true = sum(int(right_answers(place).sum()) for place in range(12))
    assert all(abs(float(aggregate.further[RIGHT].total[0]) - true) < 6 * deviation for aggregate in seen)


def test_the_statement_names_each_release_and_its_share_of_the_budget(tmp_path):
    started, _, _ = run(tmp_path, "simulation.fidelity=ideal", "federation.rounds=1")
    assert started.records.manifest.plan.further == Server.further
    page = html.unescape(write_report([started.records.path], None).read_text())
    assert f"the sum of '{RIGHT}': 1 number of norm 20 at most from each client, for 20 % of the budget" in page
    assert f"the sum of '{BY_CLASS}': 4 numbers of norm 20 at most from each client, for 10 % of the budget" in page
    assert f"the sum of '{CLIPPING_BIT}'" not in page  # the statement speaks of it with the clip bound


def test_full_and_ideal_rounds_leave_and_charge_the_same(tmp_path):
    found = {}
    for fidelity in ("full", "ideal"):
        started, _, _ = run(tmp_path / fidelity, f"simulation.fidelity={fidelity}", "federation.rounds=1")
        written = (started.records.path / "ledger.jsonl").read_bytes()
        lines = [msgspec.json.decode(line) for line in written.splitlines()]
        ((*outcomes,),) = [line["facts"] for line in lines if line["kind"] == "completed"]
        found[fidelity] = [(one["left"], one["charged"], one["dropped"]) for one in outcomes]
    assert found["full"] == found["ideal"]
    assert len(found["full"]) == 4


def test_a_client_without_the_values_adds_nothing(tmp_path, no_noise):
    keys = ("app.client=tests.simulation.test_further_releases:Silent", "federation.rounds=1")
    _, _, (aggregate,) = run(tmp_path, *keys, "simulation.fidelity=ideal")
    assert aggregate.further[RIGHT].total.tolist() == [0]


def test_an_invitation_names_the_values_and_the_parameters_keep_to_it():
    parameters = prepare(settings_of(*KEYS)).job.design.example()
    terms = Terms.from_parameters(parameters)
    assert terms.further == (RIGHT, BY_CLASS)
    check_terms_kept(terms, terms)
    with pytest.raises(ParametersRefused, match="invitation promised"):
        check_terms_kept(msgspec.structs.replace(terms, further=(RIGHT,)), terms)


@pytest.mark.parametrize("key", ["privacy.noise.kind=none", "privacy.noise.kind=central"])
def test_values_need_noise_that_the_protocol_adds(key):
    with pytest.raises(InputError, match="further releases"):
        prepare(settings_of(*KEYS, "privacy.clip=1.0", key))


def test_the_values_are_part_of_what_everyone_hashes():
    design = prepare(settings_of(*KEYS)).job.design
    one = design.example()
    other = replace(design, setting=replace(design.setting, further=design.setting.further[:2])).example()
    assert one.digest != other.digest
    assert one.release_chunks == (range(1), range(1, 2), range(2, 3), range(3, 4))
