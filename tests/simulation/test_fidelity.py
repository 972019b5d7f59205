"""Ideal fidelity leaves out masks and messages, and nothing else: same rounding, same noise law, same failures."""

import hashlib
import itertools
import threading
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dordis.config.schema import Config
from dordis.dropout_models import EARLY, DropoutSchedule
from dordis.errors import RoundFailed
from dordis.privacy.encoding import centre
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG
from dordis.rounds.client import ClientRound
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.simulation.ideal import IdealRounds
from dordis.simulation.population import LocalRounds
from dordis.simulation.run import prepare, single_round
from tests.simulation.toys import Server
from tests.simulation.whole_runs import settings_of

STAGES = (*EARLY, *SECAGG.stages)


class Script:
    """Losses as they are told."""

    def __init__(self, leaving):
        self._leaving = leaving

    def available(self, index, clients):
        return frozenset(clients)

    def leaving(self, index, clients):
        return {u: stage for u, stage in self._leaving.items() if u in clients}


class Announced:
    """Rounds that tell what is charged, in place of a ledger."""

    def __init__(self, rounds, charge):
        self._rounds, self._charge = rounds, charge
        self.available, self.gather = rounds.available, rounds.gather
        self.still_ready = rounds.still_ready

    def sum(self, agreed, watch):
        return self._rounds.sum(replace(agreed, gate=PrivacyGate(charge=lambda dropped: self._charge())), watch)


@cache
def prepared(config, fidelity):
    """Prepare a job once for all examples."""
    config = msgspec.json.decode(config, type=Config)
    simulation = msgspec.structs.replace(config.simulation, fidelity=fidelity)
    return prepare(msgspec.structs.replace(config, simulation=simulation))


def stream(u):
    """Return the randomness of a client: the same in both fidelities, for it is invited first, and encodes next."""
    drawn = itertools.count()
    return lambda size: hashlib.shake_256(b"%d/%d" % (u, next(drawn))).digest(size)


def one_round(config, leaving, fidelity, charge=lambda: None, cores=1):
    """Run one round of a run with a fixed id and rotation; every client has randomness of its own."""
    simulated = prepared(msgspec.json.encode(config), fidelity)
    job = replace(simulated.job, app=Server(simulated.job.app.dim))
    home = replace(simulated.home(), job=job, entropy=stream(0))
    ids = home.identities.ids

    def rounds(run, selection):
        clients, departures = home.create_clients(run, selection), DropoutSchedule(Script(leaving), job.protocol)
        for u in ids:
            clients[u].entropy = stream(u)
        if fidelity == "ideal":
            ideal = IdealRounds(clients, job.protocol, departures, lambda index: ids, cores=cores)
            return Announced(ideal, charge)
        return Announced(LocalRounds(home, clients, departures, lambda index: ids, lambda exchange: exchange), charge)

    return single_round(home, rounds=rounds).result


def outcome(config, leaving, fidelity, charge=lambda: None):
    try:
        return one_round(config, leaving, fidelity, charge)
    except RoundFailed as error:
        return error


@settings(max_examples=25)
@given(
    leaving=st.dictionaries(st.integers(1, 8), st.sampled_from(STAGES), max_size=5),
    mode=st.sampled_from(["malicious", "semi-honest"]),
)
def test_without_noise_both_give_the_same_bits_or_the_same_failure(leaving, mode):
    config = settings_of(
        f"protocol.mode={mode}", "privacy.noise.kind=none", "federation.clients=8", "federation.per_round=8"
    )
    check_the_same_bits(config, leaving)


@settings(max_examples=15)
@given(leaving=st.dictionaries(st.integers(1, 8), st.sampled_from((*EARLY, *PLAINTEXT.stages)), max_size=5))
def test_without_noise_both_give_the_same_bits_in_plaintext_too(leaving):
    config = settings_of(
        "protocol.use=plaintext", "protocol.mode=semi-honest", "privacy.noise.kind=none", "federation.clients=8",
        "federation.per_round=8",
    )  # fmt: skip
    check_the_same_bits(config, leaving)


def check_the_same_bits(config, leaving):
    full, ideal = (outcome(config, leaving, fidelity) for fidelity in ("full", "ideal"))
    if isinstance(full, RoundFailed):
        assert (type(full), str(full)) == (type(ideal), str(ideal))
        return
    assert not isinstance(ideal, RoundFailed)
    for one, other in zip(full.outputs, ideal.outputs, strict=True):
        assert one.survivors == other.survivors
        assert (one.left, one.charged) == (other.left, other.charged)
        np.testing.assert_array_equal(one.total, other.total)
    np.testing.assert_array_equal(full.aggregate.mean, ideal.aggregate.mean)


def test_clients_that_encode_in_threads_give_the_same_bits(monkeypatch):
    config, leaving = settings_of("privacy.noise.kind=none"), {2: SECAGG.stages[0]}
    alone = one_round(config, leaving, "ideal")
    monkeypatch.setattr("dordis.simulation.ideal.LONG", 1)
    encoding, encode = set(), ClientRound.encode

    def watched(self, private):
        encoding.add(threading.get_ident())
        return encode(self, private)

    monkeypatch.setattr(ClientRound, "encode", watched)
    together = one_round(config, leaving, "ideal", cores=2)
    assert threading.get_ident() not in encoding
    np.testing.assert_array_equal(alone.outputs[0].total, together.outputs[0].total)


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


@pytest.mark.slow
@settings(max_examples=25)
@given(
    leaving=st.dictionaries(st.integers(1, 8), st.sampled_from(STAGES[5:]), max_size=6),
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


@pytest.mark.slow
@settings(max_examples=15)
@given(leaving=st.dictionaries(st.integers(1, 8), st.sampled_from(PLAINTEXT.stages[1:]), max_size=6))
@example(leaving={1: "Disclose", 2: "Disclose", 3: "Contribute"})
def test_both_leave_the_same_noise_in_plaintext_too(leaving):
    config = settings_of(
        "protocol.use=plaintext", "protocol.mode=semi-honest", "federation.clients=8", "federation.per_round=8"
    )
    full, ideal = (outcome(config, leaving, fidelity) for fidelity in ("full", "ideal"))
    if isinstance(full, RoundFailed):
        assert (type(full), str(full)) == (type(ideal), str(ideal))
        return
    (one,), (other,) = full.outputs, ideal.outputs
    assert (one.survivors, one.charged, one.left, one.stayed) == (
        other.survivors, other.charged, other.left, other.stayed
    )  # fmt: skip
    assert full.dropped == ideal.dropped


@pytest.mark.slow
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
    bits = prepare(config).job.design.mechanism.grid.bits
    one, other = (centre(sums.outputs[0].total, bits).astype(float) for sums in (full, ideal))
    expected = float(full.outputs[0].left)
    for sample in (one, other):  # rounded zeros are zeros: all that is left is noise
        assert abs(sample.mean()) < 5 * np.sqrt(expected / sample.size)
        assert sample.var() == pytest.approx(expected, rel=5 * np.sqrt(2 / sample.size))
        fourth = (sample**4).mean() / expected**2  # its own variance is 96 / size
        assert fourth == pytest.approx(3 + 1 / expected, abs=5 * np.sqrt(96 / sample.size))
    assert not np.array_equal(one, other)
