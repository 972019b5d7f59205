"""SecAgg gives what the plaintext protocol gives, bit for bit, or fails closed: there is no third case."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import TooFewClients, TooManyDropouts
from dordis.privacy.xnoise import Scheme
from dordis.protocols.parameters import agree_on
from tests.protocols.rounds import Round, random_inputs

SETUP_STAGES = ["AdvertiseKeys", "ShareKeys", "DeliverShares"]
CHUNK_STAGES = ["CollectInput", "Unmask", "RemoveNoise"]


@st.composite
def parameters(draw):
    n = draw(st.integers(2, 12))
    t = draw(st.integers(1, n))
    T = draw(st.integers(0, n - t))
    T_C = draw(st.integers(0, min(t, n - T) - 1))
    scheme = draw(st.sampled_from(Scheme))
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    ids = draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n, unique=True))
    noisy = scheme is not Scheme.NONE
    return agree_on(
        run=draw(st.binary(min_size=32, max_size=32)),
        index=draw(st.integers(0, 2**40)),
        clients=ids,
        threshold=t,
        tolerance=T,
        colluders=T_C,
        bits=draw(st.integers(1, 32)),
        ends=np.cumsum(sizes).tolist(),
        scheme=scheme,
        fraction=draw(st.integers(1, max(1, n // T))) if T else None,
        variances=[Fraction(draw(st.integers(1, 2**24)), 2**20) if noisy else 0 for _ in sizes],
    )


@st.composite
def rounds(draw):
    p = draw(parameters())
    chunks = range(len(p.chunks))
    points = [(u, stage, -1) for u in p.clients for stage in SETUP_STAGES]
    points += [(u, stage, chunk) for u in p.clients for chunk in chunks for stage in CHUNK_STAGES]
    losses = st.sets(st.sampled_from(points), max_size=draw(st.sampled_from([0, 2, 6])))
    return Round(p, random_inputs(p, draw(st.integers(0, 2**32))), draw(losses), draw(losses))


@pytest.mark.slow
@settings(deadline=None, max_examples=250)
@given(rounds())
def test_the_output_is_the_plaintext_sum_or_the_round_fails_closed(session):
    _check(session)


@settings(deadline=None, max_examples=40)
@given(rounds())
def test_the_output_is_the_plaintext_sum_or_the_round_fails_closed_quickly(session):
    _check(session)


def _check(session):
    outcome = session.outcome()
    if isinstance(outcome, tuple):
        _check_output(session, outcome)
    else:
        _check_failure(session, outcome)


def _check_output(session, outputs):
    p = session.parameters
    for chunk, (output, expected) in enumerate(zip(outputs, session.expected(outputs), strict=True)):
        assert np.array_equal(output.total, expected)
        assert output.survivors == _arrived(session, chunk)
        assert not output.blame
        dropped = len(p.clients) - len(output.survivors)
        assert dropped <= p.tolerance
        answered = [u for u in output.survivors if not _lost(session, u, ("Unmask",), chunk)]
        assert len(answered) >= p.threshold
        due = p.due(chunk, output.survivors)
        helpers = [u for u in answered if not _lost(session, u, ("RemoveNoise",), chunk)]
        missing = {u: due[u] for u in output.survivors if due[u] and u not in answered}
        assert output.stayed == (missing if len(helpers) < p.threshold else {})


def _check_failure(session, error):
    """Find the failure that the losses must lead to, by counting, stage after stage."""
    p = session.parameters
    n = len(p.clients)
    for stage in range(1, 4):
        present = [u for u in p.clients if not _lost(session, u, SETUP_STAGES[:stage], -1)]
        if n - len(present) > p.tolerance:
            assert isinstance(error, TooManyDropouts)
            assert error.dropped == n - len(present)
            return
    for chunk in range(len(p.chunks)):
        arrived = _arrived(session, chunk)
        if n - len(arrived) > p.tolerance:
            assert isinstance(error, TooManyDropouts)
            assert error.dropped == n - len(arrived)
            return
        answered = [u for u in arrived if not _lost(session, u, ("Unmask",), chunk)]
        if len(answered) < p.threshold:
            assert isinstance(error, TooFewClients)
            assert error.answered == len(answered)
            return
    raise AssertionError(f"no loss explains {error!r}")


def _arrived(session, chunk):
    lost_before = {u for u in session.parameters.clients if _lost(session, u, SETUP_STAGES, -1)}
    return tuple(
        u
        for u in session.parameters.clients
        if u not in lost_before and not _lost(session, u, ("CollectInput",), chunk)
    )


def _lost(session, u, stages, chunk):
    losses = {*session.lost_requests, *session.lost_replies}
    return any((u, stage, chunk) in losses for stage in stages)


def test_nothing_is_disclosed_when_more_clients_drop_than_tolerated():
    p = agree_on(
        run=bytes(32), index=0, clients=range(6), threshold=3, tolerance=2, bits=16, ends=[8],
        scheme=Scheme.SINGLE, variances=[5],
    )  # fmt: skip
    session = Round(p, random_inputs(p, 0), [(u, "CollectInput", 0) for u in range(3)])
    with pytest.raises(TooManyDropouts):
        session.run()
    for u in range(3, 6):  # nobody was asked to disclose, and nobody would have
        assert session.clients[u].state.passed == {-1: 3, 0: 1}
