"""SecAgg gives the same bits as the plaintext protocol, or fails without an output.

In both modes, on the complete graph and on sparse graphs, with any dropouts at any stage of any chunk.  The prediction
of a round has the survivors, the noise left and the failures of the real round.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import RoundFailed, TooFewClients, TooManyDropouts
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput, RemoveNoise, ShareKeys, Unmask
from dordis.protocols.secagg.server import STAGES, SecAggPrediction
from dordis.protocols.sparse_graph import check_neighbourhood, least_quorum, least_threshold
from tests.protocols.rounds import Round, random_inputs

SETUP_STAGES = ["AdvertiseKeys", "ShareKeys", "DeliverShares"]
CHUNK_STAGES = ["PrepareInput", "CollectInput", "Agree", "Unmask", "RemoveNoise"]


@st.composite
def complete_graphs(draw):
    mode = draw(st.sampled_from([SEMI_HONEST, MALICIOUS]))
    n = draw(st.integers(2, 12))
    t = draw(st.integers(1 if mode == SEMI_HONEST else n // 2 + 1, n))
    T = draw(st.integers(0, n - t))
    most = min(t, n - T) - 1
    T_C = draw(st.integers(0, most if mode == SEMI_HONEST else min(most, 2 * t - n - 1)))
    return {"mode": mode, "threshold": t, "tolerance": T, "colluders": T_C}, n


@st.composite
def sparse_graphs(draw):
    n = draw(st.integers(8, 14))
    T_C = draw(st.integers(0, 1))
    k = draw(
        st.sampled_from([k for k in (4, 6, 8, 10) if k < n - 1 and least_threshold(n, T_C, MALICIOUS, k) <= k + 1])
    )
    t_k = draw(st.integers(least_threshold(n, T_C, MALICIOUS, k), k + 1))
    q = draw(st.integers(least_quorum(n, T_C, MALICIOUS), n))
    T = draw(st.integers(0, n - q))
    check_neighbourhood(n, T, T_C, MALICIOUS, q, k, t_k)
    graph = {"mode": MALICIOUS, "degree": k, "threshold": t_k, "quorum": q, "tolerance": T, "colluders": T_C}
    return graph | {"beacon": draw(st.binary(min_size=32, max_size=32))}, n


@st.composite
def rounds(draw, graphs):
    graph, n = draw(graphs)
    scheme = draw(st.sampled_from(Scheme))
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    T, noisy = graph["tolerance"], scheme is not Scheme.NONE
    p = agree_on(
        **graph,
        run=draw(st.binary(min_size=32, max_size=32)),
        index=draw(st.integers(0, 2**40)),
        clients=draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n, unique=True)),
        bits=draw(st.integers(1, 32)),
        ends=np.cumsum(sizes).tolist(),
        scheme=scheme,
        fraction=draw(st.integers(1, max(1, n // T))) if T else None,
        variances=[Fraction(draw(st.integers(1, 2**24)), 2**20) if noisy else 0 for _ in sizes],
    )
    points = [(u, stage, -1) for u in p.clients for stage in SETUP_STAGES]
    points += [(u, stage, chunk) for u in p.clients for chunk in range(len(sizes)) for stage in CHUNK_STAGES]
    losses = st.sets(st.sampled_from(points), max_size=draw(st.sampled_from([0, 2, 6])))
    return Round(p, random_inputs(p, draw(st.integers(0, 2**32))), draw(losses), draw(losses))


@pytest.mark.slow
@settings(deadline=None, max_examples=250)
@given(rounds(complete_graphs()))
def test_the_output_is_the_plaintext_sum_or_the_round_fails_closed(session):
    check(session)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(rounds(sparse_graphs()))
def test_the_same_on_sparse_graphs(session):
    check(session)


@settings(deadline=None, max_examples=40)
@given(st.one_of(rounds(complete_graphs()), rounds(sparse_graphs())))
def test_the_same_quickly(session):
    check(session)


def check(session):
    outcome, expected = session.outcome(), predict(session)
    if isinstance(expected, RoundFailed):
        assert type(outcome) is type(expected)
        assert vars(outcome) == vars(expected)
        return
    for chunk, (output, total) in enumerate(zip(outcome, session.expected(outcome), strict=True)):
        survivors, stayed = expected[chunk]
        assert output.survivors == survivors
        assert output.stayed == stayed
        assert np.array_equal(output.total, total)
        assert not output.named


def predict(session):
    """Count, stage after stage, who is there: return the failure it must lead to, or U3 and what stays by chunk."""
    p = session.parameters
    u2 = ready = list(p.clients)
    for stage in SETUP_STAGES:
        u2, shown = ready, set(ready)
        enough = stage == "AdvertiseKeys" or p.threshold
        ready = [u for u in u2 if not lost(session, u, stage, -1) and len(p.neighbourhoods[u] & shown) >= enough]
        if len(p.clients) - len(ready) > p.tolerance:
            return TooManyDropouts(len(p.clients) - len(ready), p.tolerance)
    chunks = [predict_chunk(session, u2, ready, chunk) for chunk in range(len(p.chunks))]
    return next((chunk for chunk in chunks if isinstance(chunk, RoundFailed)), chunks)


def predict_chunk(session, u2, ready, chunk):
    p = session.parameters
    u3 = [u for u in ready if not lost(session, u, "CollectInput", chunk)]
    if len(p.clients) - len(u3) > p.tolerance:
        return TooManyDropouts(len(p.clients) - len(u3), p.tolerance)
    u4 = [u for u in u3 if not (p.is_malicious and lost(session, u, "Agree", chunk))]
    if len(u4) < p.quorum:
        return TooFewClients("Agree", len(u4), p.quorum)
    u5 = [u for u in u4 if not lost(session, u, "Unmask", chunk)]
    if len(u5) < p.quorum:
        return TooFewClients("Unmask", len(u5), p.quorum)
    for dealer in u2:
        holders = len(p.neighbourhoods[dealer] & set(u5))
        if holders < p.threshold:
            return TooFewClients("Unmask", holders, p.threshold)
    u6 = {u for u in u5 if not lost(session, u, "RemoveNoise", chunk)}
    due = p.due(chunk, u3)
    missing = [u for u in u3 if due[u] and u not in u5]
    return tuple(u3), {u: due[u] for u in missing if len(p.neighbourhoods[u] & u6) < p.threshold}


def lost(session, u, stage, chunk):
    return (u, stage, chunk) in {*session.lost_requests, *session.lost_replies}


def test_nothing_is_disclosed_when_more_clients_drop_than_tolerated():
    p = agree_on(
        run=bytes(32), index=0, clients=range(6), threshold=3, tolerance=2, bits=16, ends=[8],
        scheme=Scheme.SINGLE, variances=[5],
    )  # fmt: skip
    session = Round(p, random_inputs(p, 0), [(u, "CollectInput", 0) for u in range(3)])
    with pytest.raises(TooManyDropouts):
        session.run()
    for u in range(3, 6):  # nobody was asked to disclose, and nobody would have
        assert session.clients[u].state.passed == {-1: 3, 0: 2}


IDS = (1, 2, 3, 4, 5)
P = agree_on(
    run=bytes(32), index=0, clients=IDS, threshold=3, tolerance=1, bits=13, ends=[4], scheme=Scheme.SINGLE,
    variances=[50],
)  # fmt: skip
OWING = next(u for u, ks in P.due(0, IDS).items() if ks)
HOLDERS = [u for u in IDS if u != OWING]
LEAVING = [
    {},
    {1: AdvertiseKeys},
    {2: CollectInput},
    {3: Unmask},
    {3: Unmask, 4: Unmask},
    {3: Unmask, 4: Unmask, 5: Unmask},
    {1: ShareKeys, 2: CollectInput},
    {1: CollectInput, 2: Unmask, 3: Unmask},
    {1: Unmask, 2: RemoveNoise, 3: RemoveNoise},
    {OWING: Unmask, HOLDERS[0]: RemoveNoise, HOLDERS[1]: RemoveNoise},
]


def real(leaving):
    """Run the round; return its survivors and the noise that stayed, or its error."""
    losses = [(u, later.__name__, chunk) for u, kind in leaving.items() for later in STAGES[STAGES.index(kind) :]
              for chunk in (-1, 0)]  # fmt: skip
    outcome = Round(P, random_inputs(P, 1), losses).outcome()
    return type(outcome) if isinstance(outcome, RoundFailed) else (outcome[0].survivors, outcome[0].stayed)


def predicted(leaving):
    prediction = SecAggPrediction(P, {u: kind.__name__ for u, kind in leaving.items()})
    try:
        survivors = prediction.survivors()
        prediction.check_before_disclosure()
        prediction.check_after_disclosure()
    except RoundFailed as error:
        return type(error)
    return survivors, prediction.unreleased(P.due(0, survivors))


@pytest.mark.parametrize("leaving", LEAVING, ids=lambda value: ",".join(f"{u}:{k.__name__}" for u, k in value.items()))
def test_survivors_remaining_noise_and_failures_are_those_of_the_round(leaving):
    assert predicted(leaving) == real(leaving)


def test_the_cases_include_failures_and_noise_that_stays():
    outcomes = [predicted(leaving) for leaving in LEAVING]
    assert any(isinstance(outcome, type) for outcome in outcomes)
    assert any(not isinstance(outcome, type) and outcome[1] for outcome in outcomes)
