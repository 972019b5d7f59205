"""Ideal rounds sum updates without rounding where nothing is added to them in the ring, and nowhere else."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dordis.errors import RoundFailed
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.secagg import SECAGG
from dordis.simulation import ideal
from dordis.simulation.run import prepare, single_round
from tests.simulation.test_fidelity import Script, stream
from tests.simulation.whole_runs import settings_of

CLIENTS = "federation.clients=8", "federation.per_round=8", "simulation.fidelity=ideal"


def summed(*settings, leaving=None, rounding=False, cores=1):
    """Run one round; entropy that is given makes clients round, in their order."""
    simulated = prepare(settings_of(*CLIENTS, f"performance.threads={cores}", *settings))
    home = replace(simulated.home(), dropout=Script(leaving or {}))
    return simulated.job.design, single_round(replace(home, entropy=stream(0)) if rounding else home).result


@pytest.mark.parametrize("leaving", [{}, {3: SECAGG.stages[0], 5: "Unmask"}])
@pytest.mark.parametrize("cores", [1, 2])
def test_without_noise_the_sum_differs_by_what_rounding_changes(monkeypatch, leaving, cores):
    monkeypatch.setattr(ideal, "LONG", 1)
    monkeypatch.setattr(ideal, "PIECE", 16)
    settings = ("privacy.noise.kind=none", "app.options.size=3.0")
    design, reals = summed(*settings, leaving=leaving, cores=cores)
    _, ring = summed(*settings, leaving=leaving, rounding=True)
    assert reals.outputs[0].total.size == 0 < ring.outputs[0].total.size
    assert [output.survivors for output in reals.outputs] == [output.survivors for output in ring.outputs]
    assert (reals.dropped, reals.aggregate.survivors) == (ring.dropped, ring.aggregate.survivors)
    grid, updates = design.mechanism.grid, [np.random.default_rng(u).normal(0.0, 3.0, 40) for u in range(8)]
    exact = sum(updates[u - 1] for u in reals.outputs[0].survivors)
    np.testing.assert_allclose(reals.aggregate.total, exact, rtol=0, atol=1e-12)
    error = np.linalg.norm(reals.aggregate.total - ring.aggregate.total)
    assert 0 < error <= len(reals.outputs[0].survivors) * np.sqrt(grid.padded) / grid.scale


def test_a_round_that_fails_fails_alike():
    leaving = dict.fromkeys(range(1, 7), "Unmask")
    failures = []
    for rounding in (False, True):
        with pytest.raises(RoundFailed) as caught:
            summed("privacy.noise.kind=none", leaving=leaving, rounding=rounding)
        failures.append((type(caught.value), str(caught.value)))
    assert failures[0] == failures[1]


def test_under_central_noise_updates_are_clipped_and_the_noise_is_the_same(monkeypatch):
    settings = ("privacy.noise.kind=central", "app.options.dim=20000", "app.options.size=1.0", "privacy.clip=0.5")
    design, noisy = summed(*settings)
    mechanism = design.mechanism
    assert isinstance(mechanism, CentralGaussian)
    updates = [np.random.default_rng(u).normal(0.0, 1.0, 20000) for u in range(8)]
    clipped = sum(0.5 * update / np.linalg.norm(update) for update in updates)
    noise = noisy.aggregate.total - clipped
    assert noise.std() == pytest.approx(mechanism.sigma, rel=5 / np.sqrt(2 * noise.size))
    assert abs(noise.mean()) < 5 * mechanism.sigma / np.sqrt(noise.size)
    monkeypatch.setattr(CentralGaussian, "add_server_noise", lambda self, mean, count=1: None)
    _, bare = summed(*settings)
    np.testing.assert_allclose(bare.aggregate.total, clipped, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sums_reals"),
    [
        (("privacy.noise.kind=none",), True),
        (("privacy.noise.kind=central",), True),
        (("privacy.noise.kind=xnoise",), False),
        (("privacy.noise.kind=orig",), False),
        (("privacy.noise.kind=local",), False),
    ],
)
def test_only_where_nothing_is_added_in_the_ring(settings, sums_reals):
    simulated = prepare(settings_of(*CLIENTS, *settings))
    seen, encode = [], DistributedDP.encode

    def watched(self, update, *entropy):
        seen.append(self.sums_reals)
        return encode(self, update, *entropy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DistributedDP, "encode", watched)
        single_round(simulated.home())
    assert bool(seen) is not sums_reals
    assert not any(seen)


def test_a_mechanism_that_encodes_in_its_own_way_is_not_passed_over():
    class Halving(CentralGaussian, frozen=True, tag="halving", kw_only=True):
        def encode(self, update, public_seed, *entropy):
            return super().encode(update / 2, public_seed, *entropy)

    design = prepare(settings_of(*CLIENTS, "privacy.noise.kind=central")).job.design
    own = Halving(**{name: getattr(design.mechanism, name) for name in CentralGaussian.__struct_fields__})
    parameters = design.agree_on(
        run=bytes(32), index=0, clients=range(1, 9), rotation=bytes(32), model=bytes(32), beacon=b"", chunks=1
    )
    assert DistributedDP(parameters, design.mechanism).sums_reals
    encoding = msgspec.structs.replace(parameters.encoding, mechanism="halving")
    assert not DistributedDP(msgspec.structs.replace(parameters, encoding=encoding), own).sums_reals
