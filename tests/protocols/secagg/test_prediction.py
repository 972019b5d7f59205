"""The prediction of a SecAgg round has the survivors, the noise left and the failures of the real round."""

import pytest

from dordis.errors import RoundFailed
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput, RemoveNoise, ShareKeys, Unmask
from dordis.protocols.secagg.prediction import STAGES, SecAggPrediction
from tests.protocols.rounds import Round, random_inputs

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
