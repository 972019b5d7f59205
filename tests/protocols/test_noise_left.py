"""The noise in the output is exactly the planned noise, with any dropouts at any stage: recomputed from the seeds."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from dordis.privacy.skellam_noise import noise
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from tests.protocols.rounds import Round

CLIENTS, THRESHOLD, TOLERANCE, DIM = 6, 3, 3, 5


def _parameters(scheme, chunks=1):
    return agree_on(
        run=bytes(32),
        index=7,
        clients=range(10, 10 + CLIENTS),
        threshold=THRESHOLD,
        tolerance=TOLERANCE,
        colluders=1,
        bits=24,
        ends=[DIM * (chunk + 1) for chunk in range(chunks)],
        scheme=scheme,
        variances=[Fraction(1000 + chunk) for chunk in range(chunks)],
    )


def _zeros(p):
    return {u: np.zeros(p.dim, np.uint32) for u in p.clients}


def _components(p, session, chunk, u):
    own, plan = session.clients[u].state.secrets[chunk], p.plans[chunk]
    base = [noise(s, v, DIM).astype(np.int64) for s, v in zip(own.issued.private, plan.base, strict=True)]
    return base, [noise(s, v, DIM).astype(np.int64) for s, v in zip(own.issued.deposited, plan.removable, strict=True)]


def _check(p, session, chunk, output, removed):
    """The sum of zero inputs is the noise of U3 minus the removed components, in the ring."""
    left = np.zeros(DIM, np.int64)
    variance = Fraction(0)
    for u in output.survivors:
        base, removable = _components(p, session, chunk, u)
        kept = [k for k in range(len(removable)) if k not in removed.get(u, ())]
        left += sum(base, np.zeros(DIM, np.int64)) + sum((removable[k] for k in kept), np.zeros(DIM, np.int64))
        variance += sum(p.plans[chunk].base) + sum(p.plans[chunk].removable[k] for k in kept)
    assert np.array_equal(output.total, left % 2**24)
    assert output.left == variance
    return variance


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
@pytest.mark.parametrize("dropped", range(TOLERANCE + 1))
def test_noise_left_is_the_target_whoever_drops_and_whoever_is_lost_later(scheme, dropped):
    p = _parameters(scheme)
    target = p.plans[0].kappa * p.plans[0].variance
    clients = list(p.clients)
    gone = clients[:dropped]
    later = clients[dropped:]
    for silent in [s for r in range(len(later) - THRESHOLD + 1) for s in combinations(later, r)]:
        answering = [u for u in later if u not in silent]
        for deaf in [d for r in range(len(answering) + 1) for d in combinations(answering, r)]:
            losses = [(u, "CollectInput", 0) for u in gone]
            losses += [(u, "Unmask", 0) for u in silent] + [(u, "RemoveNoise", 0) for u in deaf]
            session = Round(p, _zeros(p), losses)
            (output,) = session.run()
            due = p.due(0, output.survivors)
            short = len(answering) - len(deaf) < THRESHOLD
            stayed = {u: due[u] for u in silent if due[u]} if short else {}
            assert output.stayed == stayed
            removed = {u: ks for u, ks in due.items() if u not in stayed}
            variance = _check(p, session, 0, output, removed)
            if stayed:
                assert variance > target
            else:
                assert target <= variance <= target + Fraction(CLIENTS * (TOLERANCE + 1), 2**20)
            assert output.charged >= p.plans[0].variance


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
def test_chunks_that_lose_different_clients_each_keep_their_own_target(scheme):
    p = _parameters(scheme, chunks=4)
    losses = [(10 + i, "CollectInput", chunk) for chunk in range(4) for i in range(chunk)]
    losses += [(15, "Unmask", 0), (14, "Unmask", 2)]
    session = Round(p, _zeros(p), losses)
    for chunk, output in enumerate(session.run()):
        assert len(output.survivors) == CLIENTS - chunk
        variance = _check(p, session, chunk, output, p.due(chunk, output.survivors))
        target = p.plans[chunk].kappa * p.plans[chunk].variance
        assert target <= variance <= target + Fraction(CLIENTS * (TOLERANCE + 1), 2**20)


def test_every_chunk_has_its_own_secrets():
    p = _parameters(Scheme.EXACT, chunks=3)
    session = Round(p, _zeros(p))
    session.run()
    everything = [
        secret
        for client in session.clients.values()
        for own in client.state.secrets.values()
        for secret in (own.masking, own.self_mask, own.token, *own.issued.private, *own.issued.deposited)
    ]
    assert len(everything) == len(set(everything)) == CLIENTS * 3 * (3 + 1 + TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT])
@pytest.mark.parametrize("dropped", range(4))
def test_measured_without_what_two_colluders_know_it_is_what_is_charged_on_a_sparse_graph(scheme, dropped):
    n, dim = 16, 1 << 17  # the variance of so many samples is off by 2.5 % with a chance of 2e-10
    p = agree_on(
        run=bytes(32), index=7, clients=range(10, 10 + n), threshold=5, quorum=12, degree=10, tolerance=3, colluders=2,
        bits=24, ends=[dim], scheme=scheme, variances=[Fraction(5000)], mode="semi-honest", beacon=bytes(32),
    )  # fmt: skip
    session = Round(p, _zeros(p), [(10 + 2 * i, "CollectInput", 0) for i in range(dropped)])
    (output,) = session.run()
    plan, due = p.plans[0], p.due(0, output.survivors)

    def kept(u):
        """Return the seeds and variances of the noise of a survivor that stays."""
        own = session.clients[u].state.secrets[0]
        removable = list(zip(own.issued.deposited, plan.removable, strict=True))
        base = zip(own.issued.private, plan.base, strict=True)
        return [*base, *(part for k, part in enumerate(removable) if k not in due.get(u, ()))]

    variances = {u: sum(variance for _, variance in kept(u)) for u in output.survivors}
    left = (output.total.astype(np.int64) + 2**23) % 2**24 - 2**23
    assert np.mean(left**2) == pytest.approx(float(output.left), rel=0.025)
    for u in sorted(variances, key=variances.__getitem__)[-2:]:
        for seed, variance in kept(u):
            left -= noise(seed, variance, dim)
    assert np.mean(left**2) == pytest.approx(float(output.charged), rel=0.025)
