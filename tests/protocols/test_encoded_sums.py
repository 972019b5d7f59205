"""Distributed DP: any summing protocol gives the mean of the updates with exactly the planned noise, in real units.

The noise is measured where it counts, at the decoded aggregate: noise of the real-unit size on the integer grid, which
is thousands of times too small, looks right everywhere else.
"""

import hashlib
import itertools
import math
from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.pipeline import executor as drive
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import Grid, centre
from dordis.privacy.mechanisms.central_and_local_noise import NoMechanism
from dordis.privacy.mechanisms.skellam_and_ddgauss import DDGauss, DSkellam
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import noise
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols import cohort, plaintext
from dordis.protocols import parameters as rules
from dordis.protocols.encoded_sums import DistributedDP, encoding_of, mechanism_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput, NoisyInput, PrivateServer
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.sparse_graph import least_quorum, least_threshold
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import ROTATION, Round, make_client
from tests.protocols.rounds import agree_on_plan as agree_on

N, THRESHOLD, T = 16, 12, 4
BLOCK = 65_536
PRECISION = 0.025  # 4.5 standard deviations of a variance estimated from 65,536 coordinates


def entropy(tag):
    """Return a source of bytes that are the same in every run, and different for every tag and call."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(b"%d/%d" % (tag, next(calls))).digest(size)


def planned(scheme, colluders, dim=BLOCK, bits=20):
    setting = Setting(
        ParticipationSchedule(100, N, 50),
        dim=dim,
        clip=2.0,
        delta=1e-4,
        bits=bits,
        scheme=scheme,
        threshold=THRESHOLD,
        tolerance=T,
        colluders=colluders,
    )
    return plan(setting, 6.0)


def play(parameters, updates, dim, losses=()):
    """Encode, run the whole of SecAgg, decode; everything is drawn from known entropy."""
    dp = DistributedDP.from_parameters(parameters, dim)
    vectors = {u: dp.encode(update, entropy(u)) for u, update in updates.items()}
    clients = {u: make_client(parameters, u, x, entropy=entropy(1000 + u)) for u, x in vectors.items()}
    outputs = Round(parameters, vectors, losses, clients=clients).run()
    return outputs, dp.decode(outputs)


def zeros(parameters, dim):
    return dict.fromkeys(parameters.clients, np.zeros(dim, np.float32))


def lost(clients, chunk=0):
    return [(u, "CollectInput", chunk) for u in clients]


def check_noise(decoded, variance):
    """The noise has this variance in real units, and nothing is in the way of its mean."""
    assert np.mean(decoded**2) == pytest.approx(variance, rel=PRECISION)
    assert abs(decoded.mean()) < 5 * math.sqrt(variance / decoded.size)


# The check of the noise scale


@pytest.mark.slow
@pytest.mark.parametrize("dropped", range(T + 1))
@pytest.mark.parametrize("colluders", [0, 1, 3])
@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
def test_the_noise_left_is_the_planned_one_in_real_units_however_many_drop(scheme, colluders, dropped):
    result = planned(scheme, colluders)
    parameters = agree_on(result)
    outputs, aggregate = play(parameters, zeros(parameters, BLOCK), BLOCK, lost(range(2, 2 + dropped)))
    (output,) = outputs
    assert len(output.survivors) == N - dropped
    kappa = (N - T) / (N - T - colluders)
    assert (kappa > 1) == (colluders > 0)
    check_noise(aggregate.total, float(output.left) / result.scale**2)
    check_noise(aggregate.total, kappa * result.sigma**2)
    check_noise(aggregate.mean, kappa * result.sigma**2 / (N - dropped) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
def test_chunks_that_lose_different_clients_all_keep_it(scheme):
    result = planned(scheme, colluders=2, dim=2 * BLOCK)
    parameters = agree_on(result, chunks=2)
    losses = [*lost([1, 5, 9], chunk=0), *lost([2], chunk=1), (7, "Unmask", 0), (8, "Unmask", 1)]
    outputs, aggregate = play(parameters, zeros(parameters, 2 * BLOCK), 2 * BLOCK, losses)
    assert aggregate.survivors == (N - 3, N - 1)
    expected = result.sigma**2 * (N - T) / (N - T - 2)
    for chunk, output in enumerate(outputs):
        stripe = aggregate.total[chunk::2]
        check_noise(stripe, float(output.left) / result.scale**2)
        check_noise(stripe, expected)
        check_noise(aggregate.mean[chunk::2], expected / aggregate.survivors[chunk] ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [0, 4])
def test_orig_loses_its_share_with_everyone_who_drops(dropped):
    result = planned(Scheme.ORIG, colluders=1)
    parameters = agree_on(result)
    _, aggregate = play(parameters, zeros(parameters, BLOCK), BLOCK, lost(range(1, 1 + dropped)))
    check_noise(aggregate.total, result.sigma**2 * (N - dropped) / (N - 1))


def test_noise_of_the_real_unit_size_on_the_integer_grid_is_found():
    """The fault of the published code: the check above must not pass it."""
    result = planned(Scheme.SINGLE, colluders=1)
    right = agree_on(result)
    small = {0: str(Fraction(math.ceil(result.sigma**2 * 2**20), 2**20))}
    draft = msgspec.structs.replace(right, variances=small)
    wrong = msgspec.structs.replace(draft, tables=rules.table_hash(draft))
    _, aggregate = play(wrong, zeros(wrong, BLOCK), BLOCK)
    assert result.scale > 100
    with pytest.raises(AssertionError):
        check_noise(aggregate.total, result.sigma**2 * 12 / 11)


# Updates


def drawn_updates(parameters, dim, norm):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(N, dim)) + 0.5
    rows *= norm / np.linalg.norm(rows, axis=1, keepdims=True)
    return {u: row.astype(np.float32) for u, row in zip(parameters.clients, rows, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("norm", [1.5, 40.0])
@pytest.mark.parametrize("dropped", [0, 3])
def test_the_mean_is_off_by_the_noise_and_the_rounding_and_by_nothing_else(norm, dropped):
    result = planned(Scheme.SINGLE, colluders=1)
    parameters = agree_on(result)
    updates = drawn_updates(parameters, BLOCK, norm)
    outputs, aggregate = play(parameters, updates, BLOCK, lost(range(1, 1 + dropped)))
    count = N - dropped
    clipped = min(1.0, 2.0 / norm)
    truth = clipped * np.mean([updates[u].astype(np.float64) for u in outputs[0].survivors], axis=0)
    error = aggregate.mean - truth
    least = float(outputs[0].left) / (result.scale * count) ** 2
    most = (float(outputs[0].left) + count / 4) / (result.scale * count) ** 2
    assert least * (1 - PRECISION) < np.mean(error**2) < most * (1 + PRECISION)
    assert abs(error.mean()) < 5 * math.sqrt(most / BLOCK)
    assert np.abs(error).max() < 6.5 * math.sqrt(most)


def test_each_coordinate_is_averaged_over_the_clients_of_its_chunk():
    dim, block = 50, 8
    grid = Grid(dim, block, 1e4, 32)
    ends = [16, 40, 56]
    parameters = cohort.agree_on(
        run=bytes(32),
        index=0,
        clients=range(1, 9),
        threshold=4,
        bits=32,
        ends=ends,
        encoding=encoding_of(NoMechanism(grid), ROTATION),
    )
    updates = {u: np.full(dim, float(u)) for u in parameters.clients}
    outputs, aggregate = play(parameters, updates, dim, [*lost([8], 0), *lost([1, 2], 2)])
    survivors = [set(output.survivors) for output in outputs]
    assert aggregate.survivors == (7, 8, 6)
    for i in range(dim):
        chunk = next(k for k, end in enumerate(ends) if (i % grid.blocks) * block < end)
        assert aggregate.total[i] == pytest.approx(sum(survivors[chunk]), abs=0.02)
        assert aggregate.mean[i] == pytest.approx(sum(survivors[chunk]) / len(survivors[chunk]), abs=0.01)


# The protocols between


SPARSE = {"degree": 10, "threshold": least_threshold(N, 1, MALICIOUS, 10), "beacon": bytes(32)}
PROTOCOLS = {
    "plaintext": {},
    SEMI_HONEST: {},
    MALICIOUS: {"mode": MALICIOUS},
    "secagg+": {"mode": MALICIOUS} | SPARSE,
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_any_protocol_that_sums_will_do(name):
    dim = 3000
    result = plan(
        Setting(
            ParticipationSchedule(100, N, 50),
            dim=dim,
            delta=1e-4,
            bits=20,
            threshold=least_quorum(N, 1, MALICIOUS),
            tolerance=1,
        ),
        6.0,
    )
    parameters = agree_on(result, **PROTOCOLS[name])
    updates = drawn_updates(parameters, dim, 1.0)
    if name == "plaintext":
        dp = DistributedDP.from_parameters(parameters, dim)
        clients = {
            u: plaintext.PlaintextClient(u, NoisyInput(dp.encode(x, entropy(u))), entropy=entropy(100 + u))
            for u, x in updates.items()
        }
        outputs = drive.run(PrivateServer(plaintext.PlaintextServer(parameters), parameters), LocalExchange(clients))
        aggregate, left = dp.decode(outputs), outputs[0].left
        assert left == parameters.plans[0].variance_left(parameters.clients, b"")
    else:
        (output,), aggregate = play(parameters, updates, dim)
        left = output.left
    error = aggregate.mean - np.mean(list(updates.values()), axis=0)
    assert np.mean(error**2) == pytest.approx(float(left) / (result.scale * N) ** 2, rel=0.13)


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [0, 1])
@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
@pytest.mark.parametrize("name", [MALICIOUS, "secagg+"])
def test_the_noise_that_a_colluder_does_not_know_is_the_noise_that_is_charged(name, scheme, dropped):
    """Measured at the end of the whole protocol; the survivor who keeps most tells the server its noise."""
    quorum = least_quorum(N, 1, MALICIOUS)
    schedule = ParticipationSchedule(100, N, 50)
    setting = Setting(schedule, dim=BLOCK, delta=1e-4, bits=20, scheme=scheme, threshold=quorum, tolerance=1)
    parameters = agree_on(plan(setting, 6.0), **PROTOCOLS[name])
    dp = DistributedDP.from_parameters(parameters, BLOCK)
    vectors = {u: dp.encode(update, entropy(u)) for u, update in zeros(parameters, BLOCK).items()}
    clients = {u: make_client(parameters, u, x, entropy=entropy(1000 + u)) for u, x in vectors.items()}
    (output,) = Round(parameters, vectors, lost(range(2, 2 + dropped)), clients=clients).run()
    assert len(output.survivors) == N - dropped
    due, noise_plan = parameters.due(0, output.survivors), parameters.plans[0]
    colluder = min(output.survivors, key=lambda u: len(due[u]))
    secrets, unknown = clients[colluder].state.secrets[0], centre(output.total, parameters.bits).astype(np.int64)
    removable = enumerate(zip(secrets.issued.deposited, noise_plan.removable, strict=True))
    kept = [
        *zip(secrets.issued.private, noise_plan.base, strict=True),
        *(own for k, own in removable if k not in due[colluder]),
    ]
    for seed, variance in kept:
        unknown -= noise(seed, variance, BLOCK)
    assert np.mean(unknown.astype(np.float64) ** 2) == pytest.approx(float(output.charged), rel=PRECISION)
    assert 1 <= output.charged / noise_plan.variance < 1 + PRECISION


# What is agreed on


def test_the_parameters_are_those_of_the_plan():
    result = planned(Scheme.EXACT, colluders=2, dim=100_000)
    parameters = agree_on(result, chunks=3, mode=MALICIOUS)
    setting = result.setting
    assert parameters.dim == setting.padded
    assert (parameters.bits, parameters.scheme, parameters.mode) == (20, "exact", MALICIOUS)
    assert (parameters.quorum, parameters.tolerance, parameters.colluders) == (THRESHOLD, T, 2)
    assert [Fraction(v) for v in parameters.variances.values()] == [result.variance] * 3
    assert parameters.plans == (result.noise,) * 3
    written = parameters.encoding
    assert (written.mechanism, written.clip, written.rotation) == ("skellam", 2.0, ROTATION)
    assert (written.scale, written.block, written.sensitivity) == (
        result.scale,
        setting.block,
        result.sensitivity.squared,
    )
    assert mechanism_of(parameters, setting.dim) == DSkellam.from_plan(result)


def change(parameters, **changes):
    written = msgspec.structs.replace(parameters.encoding, **changes.pop("encoding", {}))
    return msgspec.structs.replace(parameters, encoding=written, **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoding": {"mechanism": "os:system"}}, "'os:system' is not a mechanism of dordis"),
        ({"encoding": {"noise": "4"}}, "not agreed on"),
        ({"encoding": {"noise": ""}}, "not agreed on"),
        ({"encoding": {"mechanism": "ddgauss", "noise": "4"}}, "does not go with the scheme 'single'"),
        ({"encoding": {"rotation": b""}}, "32 bytes"),
        ({"encoding": {"sensitivity": 0}}, "Delta2"),
        ({"encoding": {"clip": 3.0}}, "Delta2"),
        ({"encoding": {"clip": math.inf}}, "clip"),
        ({"encoding": {"scale": math.nan}}, "scale"),
        ({"encoding": {"block": 3}}, "power of two"),
        ({"encoding": {"block": 2**14, "sensitivity": 10**12}}, "blocks of 4096, not of 16384"),
        ({"ends": (1024).to_bytes(8, "little")}, "padded to 4096, not to 1024"),
        ({"ends": (1000).to_bytes(8, "little") + (4096).to_bytes(8, "little")}, "multiples of the block"),
        ({"scheme": "none"}, "does not go with the scheme 'none'"),
    ],
)
def test_parameters_that_do_not_fit_the_update_are_refused(changes, reason):
    parameters = agree_on(planned(Scheme.SINGLE, 1, 3000))
    DistributedDP.from_parameters(parameters, 3000)
    with pytest.raises(InputError, match=reason):
        DistributedDP.from_parameters(change(parameters, **changes), 3000)


@pytest.mark.parametrize("dim", [0, 5000])
def test_a_model_of_another_size_is_refused(dim):
    with pytest.raises(InputError):
        DistributedDP.from_parameters(agree_on(planned(Scheme.SINGLE, 1, 3000)), dim)


def test_a_mechanism_that_was_not_agreed_on_is_refused():
    result = planned(Scheme.SINGLE, 1, 3000)
    parameters, mechanism = agree_on(result), DSkellam.from_plan(result)
    with pytest.raises(ParametersRefused, match="not agreed on"):
        DistributedDP(parameters, NoMechanism(mechanism.grid))
    with pytest.raises(ParametersRefused, match="not agreed on"):
        DistributedDP(parameters, msgspec.structs.replace(mechanism, sensitivity=mechanism.sensitivity + 1))
    with pytest.raises(ParametersRefused, match="20 bits, not 24"):
        DistributedDP(parameters, msgspec.structs.replace(mechanism, grid=replace(mechanism.grid, bits=24)))


def test_sums_of_other_chunks_are_refused():
    parameters = agree_on(planned(Scheme.SINGLE, 1, 3000))
    dp = DistributedDP.from_parameters(parameters, 3000)
    for sizes in ([], [3000], [2048, 2048]):
        with pytest.raises(InputError, match="chunks of \\[4096\\] coordinates"):
            dp.decode(
                [
                    ChunkOutput.from_plan(parameters, 0, np.zeros(size, np.uint32), parameters.clients, {})
                    for size in sizes
                ]
            )


# A mechanism that brings its own noise


def discrete(scheme, **noise):
    mechanism = DDGauss.from_plan(planned(Scheme.ORIG, colluders=1))
    parameters = cohort.agree_on(
        run=bytes(32),
        index=0,
        clients=range(1, N + 1),
        threshold=THRESHOLD,
        bits=mechanism.grid.bits,
        ends=[mechanism.grid.padded],
        scheme=scheme,
        encoding=encoding_of(mechanism, ROTATION),
        **noise,
    )
    return DistributedDP(parameters, mechanism)


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG, Scheme.CONSERVATIVE])
def test_skellam_noise_over_discrete_gaussians_is_refused(scheme):
    with pytest.raises(ParametersRefused, match=f"does not go with the scheme '{scheme.value}'"):
        discrete(scheme, variances=[Fraction(4)])


@pytest.mark.slow
def test_discrete_gaussian_noise_is_the_planned_one_in_real_units():
    dp, result = discrete(Scheme.NONE), planned(Scheme.ORIG, colluders=1)
    parameters = dp.parameters
    vectors = {u: dp.encode(np.zeros(BLOCK), entropy(u)) for u in parameters.clients}
    outputs = Round(parameters, vectors, lost([3, 4])).run()
    check_noise(dp.decode(outputs).total, result.sigma**2 * (N - 2) / (N - 1))
