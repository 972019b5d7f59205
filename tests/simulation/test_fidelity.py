"""Ideal fidelity leaves out masks and messages, and nothing else: same rounding, same noise law, same failures."""

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dordis.errors import RoundFailed
from dordis.federation.round import Call, silent
from dordis.federation.selection import NO_PROOFS
from dordis.privacy.encoding import centred
from dordis.simulation.availability import STAGES
from dordis.simulation.cast import Cast, Identities
from dordis.simulation.config import Config
from dordis.simulation.job import prepare
from tests.simulation.whole_runs import settings_of

RUN = bytes(range(32))


class Script:
    """Losses as they are told."""

    def __init__(self, leaving):
        self._leaving = leaving

    def available(self, index, clients):
        return frozenset(clients)

    def leaving(self, index, clients):
        return {u: stage for u, stage in self._leaving.items() if u in clients}


@cache
def prepared(config, fidelity):
    """Prepare a job, whose rounds leave no trace in it, once for all examples."""
    config = msgspec.json.decode(config, type=Config)
    simulation = msgspec.structs.replace(config.simulation, fidelity=fidelity)
    return prepare(msgspec.structs.replace(config, simulation=simulation))


def one_round(config, leaving, fidelity, unmasking=lambda: None):
    """Run one round; everybody rounds with the same bytes, so that it does not matter who is asked first."""
    job = prepared(msgspec.json.encode(config), fidelity)
    cast = Cast(job.config, job.design, job.ids, RUN, Identities.of(bytes(32), job.ids))
    fleet = cast.fleet(replace(cast.population(job.client), dropout=Script(leaving), entropy=bytes))
    clients = cast.selection.select(0, job.ids).clients
    parameters = job.design.agree_on(
        run=RUN, index=0, clients=clients, rotation=bytes(32), model=b"", beacon=cast.beacon.value(0)
    )
    return fleet.sum(Call(parameters, job.design.mechanism, job.app.model(), NO_PROOFS, unmasking, silent))


def outcome(config, leaving, fidelity, unmasking=lambda: None):
    try:
        return one_round(config, leaving, fidelity, unmasking)
    except RoundFailed as error:
        return error


@settings(max_examples=25, deadline=None)
@given(
    leaving=st.dictionaries(st.integers(1, 8), st.sampled_from(STAGES), max_size=5),
    mode=st.sampled_from(["malicious", "semi-honest"]),
)
def test_without_noise_both_give_the_same_bits_or_the_same_failure(leaving, mode):
    config = settings_of(
        f"protocol.mode={mode}", "privacy.noise.kind=none", "federation.clients=8", "federation.per_round=8"
    )
    full, ideal = (outcome(config, leaving, fidelity) for fidelity in ("full", "ideal"))
    if isinstance(full, RoundFailed):
        assert (type(full), str(full)) == (type(ideal), str(ideal))
        return
    assert not isinstance(ideal, RoundFailed)
    for one, other in zip(full.outputs, ideal.outputs, strict=True):
        assert one.survivors == other.survivors
        assert (one.left, one.charged) == (other.left, other.charged)
        np.testing.assert_array_equal(one.total, other.total)


def test_both_fail_where_a_neighbourhood_is_lost():
    config = settings_of(
        "protocol.use=secagg+", "protocol.mode=semi-honest", "federation.clients=16", "federation.per_round=16"
    )
    failed = []
    for seed in range(6):  # a client has 4 neighbours, and its secrets take 2 shares
        chosen = np.random.default_rng(seed).permutation(16)[:7] + 1
        leaving = dict.fromkeys(chosen.tolist(), "Unmask")
        full, ideal = (outcome(config, leaving, fidelity) for fidelity in ("full", "ideal"))
        failed.append(isinstance(full, RoundFailed))
        if failed[-1]:
            assert (type(full), str(full)) == (type(ideal), str(ideal))
        else:
            assert (full.outputs[0].left, full.outputs[0].stayed) == (ideal.outputs[0].left, ideal.outputs[0].stayed)
    assert set(failed) == {True, False}


@settings(max_examples=25, deadline=None)
@given(
    leaving=st.dictionaries(st.integers(1, 8), st.sampled_from(STAGES[3:]), max_size=6),
    mode=st.sampled_from(["malicious", "semi-honest"]),
    scheme=st.sampled_from(["single", "exact"]),
)
@example(leaving={1: "Unmask", 2: "Unmask", 3: "Unmask", 4: "Unmask"}, mode="malicious", scheme="single")
@example(leaving={1: "Agree", 2: "Unmask", 3: "Unmask", 4: "RemoveNoise"}, mode="malicious", scheme="exact")
@example(leaving={1: "Unmask", 2: "Unmask", 3: "Unmask", 4: "RemoveNoise"}, mode="semi-honest", scheme="single")
def test_both_charge_the_same_rounds_and_leave_the_same_noise(leaving, mode, scheme):
    config = settings_of(
        f"protocol.mode={mode}", f"privacy.noise.scheme={scheme}", "federation.clients=8", "federation.per_round=8"
    )
    told = {"full": [], "ideal": []}
    full, ideal = (outcome(config, leaving, fidelity, lambda f=fidelity: told[f].append(1)) for fidelity in told)
    assert told["full"] == told["ideal"]
    if isinstance(full, RoundFailed):
        assert (type(full), str(full)) == (type(ideal), str(ideal))
        return
    (one,), (other,) = full.outputs, ideal.outputs
    assert (one.survivors, one.charged) == (other.survivors, other.charged)
    assert (one.left, one.stayed) == (other.left, other.stayed)


@pytest.mark.parametrize("noise", ["xnoise", "orig", "conservative"])
@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_with_noise_both_have_the_same_law(noise, dropped):
    config = settings_of(
        f"privacy.noise.kind={noise}",
        "app.options.dim=65536",
        "app.options.size=0.0",
        "privacy.epsilon=8.0",
        "federation.clients=6",
        "protocol.tolerance=2",
    )
    leaving = dict.fromkeys(range(1, 1 + dropped), "CollectInput")
    full, ideal = (one_round(config, leaving, fidelity) for fidelity in ("full", "ideal"))
    assert full.outputs[0].left == ideal.outputs[0].left
    bits = prepare(config).design.mechanism.grid.bits
    one, other = (centred(sums.outputs[0].total, bits).astype(float) for sums in (full, ideal))
    expected = float(full.outputs[0].left)
    for sample in (one, other):  # rounded zeros are zeros: all that is left is noise
        assert abs(sample.mean()) < 5 * np.sqrt(expected / sample.size)
        assert sample.var() == pytest.approx(expected, rel=5 * np.sqrt(2 / sample.size))
        fourth = (sample**4).mean() / expected**2  # its own variance is 96 / size
        assert fourth == pytest.approx(3 + 1 / expected, abs=5 * np.sqrt(96 / sample.size))
    assert not np.array_equal(one, other)
