"""Folded updates in whole rounds: the decoded noise is the charged noise, with any dropouts."""

import math

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import DISTORTION
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols import parameters as rules
from dordis.protocols.costs import round_cost
from dordis.protocols.encoded_sums import DistributedDP, mechanism_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import MALICIOUS, Projection
from dordis.protocols.sparse_graph import least_quorum, least_threshold
from tests.privacy.clipping_bits import plan_bit
from tests.protocols.rounds import agree_on_plan as agree_on
from tests.protocols.test_encoded_sums import entropy, lost, play, zeros

N, THRESHOLD, T, COLLUDERS = 16, 12, 4, 2
BUCKETS = 131_072
DIM = 3 * BUCKETS - 1000
PRECISION = 0.025
"""6.4 standard deviations of a variance that is estimated from as many buckets."""
DEGREE = 14
"""So many neighbours that T = 4 of them may go, wherever they are."""


def planned(scheme, dim=DIM, buckets=BUCKETS, epsilon=6.0, **options):
    given = {"threshold": THRESHOLD, "tolerance": T, "colluders": COLLUDERS, "bits": 20} | options
    schedule = ParticipationSchedule(100, N, 50)
    return plan(Setting(schedule, dim=dim, clip=2.0, delta=1e-4, scheme=scheme, buckets=buckets, **given), epsilon)


def check_noise(result, output, aggregate):
    """What is decoded has the variance that is charged, and what T_C colluders and the delivery bring on top of it."""
    counted = float(output.charged) / result.scale**2
    assert counted >= result.sigma**2 * (1 - 1e-9)
    kappa = float(output.left / output.charged)
    assert (kappa > 1) == (result.setting.colluders > 0)
    for total, copies in ((aggregate.total, 1), (aggregate.mean, len(output.survivors))):
        assert np.mean(total**2) == pytest.approx(kappa * counted / copies**2 / (1 - DISTORTION), rel=PRECISION)
    buckets = np.abs(aggregate.total[:BUCKETS])
    assert (np.abs(aggregate.total[BUCKETS : 2 * BUCKETS]) == buckets).all()


@pytest.mark.slow
@pytest.mark.parametrize("dropped", range(T + 1))
@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
def test_the_decoded_noise_is_the_charged_noise_however_many_drop(scheme, dropped):
    result = planned(scheme)
    parameters = agree_on(result)
    (output,), aggregate = play(parameters, zeros(parameters, DIM), DIM, lost(range(2, 2 + dropped)))
    assert len(output.survivors) == N - dropped
    check_noise(result, output, aggregate)


@pytest.mark.slow
@pytest.mark.parametrize(("colluders", "dropped"), [(1, 0), (1, T), *((2, dropped) for dropped in range(T + 1))])
@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
def test_it_is_on_a_sparse_graph_too(scheme, colluders, dropped):
    result = planned(scheme, threshold=least_quorum(N, colluders, MALICIOUS), colluders=colluders)
    shares = least_threshold(N, colluders, MALICIOUS, DEGREE)
    parameters = agree_on(result, mode=MALICIOUS, degree=DEGREE, threshold=shares, beacon=bytes(32))
    (output,), aggregate = play(parameters, zeros(parameters, DIM), DIM, lost(range(2, 2 + dropped)))
    assert len(output.survivors) == N - dropped
    check_noise(result, output, aggregate)


def test_a_sum_is_off_by_noise_and_by_what_shares_its_buckets():
    """The whole error, through SecAgg: noise as charged, rounding, and ||sum||^2 (d/k - 1)."""
    dim, buckets = 9 * 1024, 1024
    result = planned(Scheme.SINGLE, dim, buckets, epsilon=1e4)
    parameters = agree_on(result)
    update = np.random.default_rng(2).standard_normal(dim)
    update *= 1.9 / np.linalg.norm(update)
    (output,), aggregate = play(parameters, dict.fromkeys(parameters.clients, update), dim)
    noise = (float(output.left) + N / 4) / result.scale**2 * dim
    folding = (1.9 * N) ** 2 * (dim / buckets - 1)
    assert np.sum((aggregate.total - N * update) ** 2) == pytest.approx(noise + folding, rel=0.3)
    assert folding > noise / 2


def test_each_coordinate_is_averaged_over_the_clients_of_its_bucket():
    """Coordinate i is in bucket i mod k, which is in block (i mod k) mod B, and blocks make up chunks."""
    dim, buckets = 50_000, 20_480
    result = planned(Scheme.SINGLE, dim, buckets)
    block = result.setting.block
    blocks = buckets // block
    parameters = agree_on(result, chunks=2)
    first_ends = parameters.chunks[0].stop // block
    update = np.full(dim, 1.0 / math.sqrt(dim))
    outputs, aggregate = play(
        parameters, dict.fromkeys(parameters.clients, update), dim, [*lost([8, 9], 0), *lost([1, 2, 3], 1)]
    )
    assert aggregate.survivors == (N - 2, N - 3)
    in_first = (np.arange(dim) % buckets) % blocks < first_ends
    assert 0 < in_first.mean() < 1
    assert aggregate.counts.tolist() == np.where(in_first, N - 2, N - 3).tolist()
    assert np.array_equal(aggregate.mean, aggregate.total / aggregate.counts)
    whole = DistributedDP.from_parameters(parameters, dim).decode(outputs)
    assert np.array_equal(whole.total, aggregate.total)


def test_clients_decode_what_the_server_decodes_bit_for_bit():
    """From what is delivered, which is less than the sum; in one chunk or in several."""
    dim, buckets = 50_000, 20_480
    result = planned(Scheme.SINGLE, dim, buckets)
    aggregates = []
    for chunks in (1, 3):
        parameters = agree_on(result, chunks=chunks)
        private = DistributedDP.from_parameters(parameters, dim)
        total = np.random.default_rng(4).integers(-3000, 3000, buckets).astype(np.int32).view(np.uint32) % 2**20
        sums = [total[span] for span in parameters.chunks]
        sent = [private.encode_delivered(k, part) for k, part in enumerate(sums)]
        assert sum(map(len, sent)) == buckets // 2 + 4 * buckets // result.setting.block
        at_client = private.assemble([private.decode_delivered(k, data, N) for k, data in enumerate(sent)])
        outputs = [ChunkOutput.from_plan(parameters, k, part, parameters.clients, {}) for k, part in enumerate(sums)]
        at_server = private.decode(outputs)
        assert np.array_equal(at_client.total, at_server.total)
        aggregates.append(at_server.total)
    assert np.array_equal(*aggregates)


def test_the_clipping_bit_is_about_the_norm_before_folding():
    """Of two updates of norm 1.5 c one folds to nothing and one to more; neither is below the bound."""
    dim, buckets = 64, 32
    result = planned(Scheme.SINGLE, dim, buckets)
    bit = plan_bit(5.0, N, result.bits)
    parameters = agree_on(result, further=[bit])
    private = DistributedDP.from_parameters(parameters, dim)
    for second in (1.0, -1.0):
        for norm, expected in ((3.0, 2**20 - bit.release.scale), (1.9, bit.release.scale)):
            update = np.zeros(dim)
            update[[0, buckets]] = norm / math.sqrt(2) * np.array([1.0, second])
            assert private.encode(update, entropy(0))[-1] == expected


def test_parameters_say_how_updates_are_folded():
    result = planned(Scheme.SINGLE, 9000, 1024)
    parameters = agree_on(result)
    assert parameters.encoding.projection == Projection(9000, 1024)
    assert mechanism_of(parameters) == mechanism_of(parameters, 9000)
    assert round_cost(parameters).theta_squared < math.inf
    for changed in (Projection(9001, 1024), Projection(9000, 1024, rule="another")):
        other = msgspec.structs.replace(
            parameters, encoding=msgspec.structs.replace(parameters.encoding, projection=changed)
        )
        assert other.digest != parameters.digest
        with pytest.raises(ParametersRefused):
            DistributedDP.from_parameters(other, 9000)


@pytest.mark.parametrize(
    "projection",
    [
        Projection(9000, 1024, rule="another"),
        Projection(9000, 1024, "by hand"),
        Projection(9000, 1024, delivered=1),
        Projection(9000, 1024, delivered=-4),
        Projection(9000, 2048),
        Projection(9000, 0),
        Projection(9000, -1024),
        Projection(1024, 1024),
        Projection(512, 1024),
        Projection(9000, 1000),
        Projection(2**31 + 1, 1024),
    ],
)
def test_other_ways_to_fold_are_refused(projection):
    parameters = agree_on(planned(Scheme.SINGLE, 9000, 1024))
    encoding = msgspec.structs.replace(parameters.encoding, projection=projection)
    with pytest.raises(InputError, match=r"projection|folded|delivered"):
        rules.check_rules(msgspec.structs.replace(parameters, encoding=encoding))
