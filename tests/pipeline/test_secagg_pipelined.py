"""SecAgg in a pipeline of threads gives the plaintext result, although every chunk loses different clients."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import DordisError, RoundFailed, TooManyDropouts
from dordis.pipeline.executor import execute
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from tests.protocols.rounds import Round, random_inputs

CLIENTS, TOLERANCE = range(1, 9), 3
STAGES = ["CollectInput", "Agree", "Unmask", "RemoveNoise"]


def parameters(mode, m):
    return agree_on(
        mode=mode,
        beacon=bytes(32),
        run=bytes(32),
        index=0,
        clients=CLIENTS,
        threshold=5,
        tolerance=TOLERANCE,
        colluders=1,
        bits=20,
        ends=np.cumsum([13] * m).tolist(),
        scheme=Scheme.SINGLE,
        variances=[Fraction(40)] * m,
    )


def pipelined(session):
    """Run the round under the executor; return its outputs, or the error that ended it."""
    server = session.server
    try:
        execute(server.setup.workflow, [chunk.workflow for chunk in server.chunks], session.exchange)
    except DordisError as error:
        return error
    return server.output()


@st.composite
def losses(draw):
    """Lose up to T clients at the upload of each chunk, others at each, and some answers later on."""
    m = draw(st.integers(1, 4))
    lost = set()
    for c in range(m):
        lost |= {(u, "CollectInput", c) for u in draw(st.sets(st.sampled_from(CLIENTS), max_size=TOLERANCE))}
        later = st.tuples(st.sampled_from(CLIENTS), st.sampled_from(STAGES[1:]), st.just(c))
        lost |= draw(st.sets(later, max_size=2))
    return m, lost


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sampled_from([SEMI_HONEST, MALICIOUS]), losses(), st.integers(0, 2**32))
def test_chunks_that_lose_different_clients_stay_correct(mode, lost, seed):
    m, lost_requests = lost
    p = parameters(mode, m)
    session = Round(p, random_inputs(p, seed), lost_requests)
    outputs = pipelined(session)
    plain = Round(p, session.inputs, lost_requests).outcome()
    if isinstance(plain, RoundFailed):  # so many answers were lost that the round fails, in both ways of running it
        assert isinstance(outputs, RoundFailed)
        return
    assert len(outputs) == m
    for chunk, (output, total) in enumerate(zip(outputs, session.expected(outputs), strict=True)):
        assert output.survivors == tuple(u for u in CLIENTS if (u, "CollectInput", chunk) not in lost_requests)
        assert np.array_equal(output.total, total)
        assert output.stayed == plain[chunk].stayed
        assert output.left == plain[chunk].left


def test_a_chunk_that_loses_too_many_ends_the_round_with_its_own_error():
    p = parameters(SEMI_HONEST, 3)
    session = Round(p, random_inputs(p, 0), [(u, "CollectInput", 1) for u in CLIENTS[: TOLERANCE + 1]])
    outcome = pipelined(session)
    assert isinstance(outcome, TooManyDropouts)
    assert outcome.dropped == TOLERANCE + 1


def test_bytes_are_counted_as_in_plain_execution():
    p = parameters(MALICIOUS, 3)
    session, plain = (Round(p, random_inputs(p, 0)) for _ in range(2))
    pipelined(session)
    plain.run()
    assert session.exchange.sent == plain.exchange.sent
    assert session.exchange.received == plain.exchange.received
