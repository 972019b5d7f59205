"""A deployed server that is killed as soon as it has a sum: the sum is charged, because the privacy gate came first."""

import pytest

from dordis.federation.ledger import verify
from dordis.federation.records import LEDGER
from tests.network.deployed import Deployed

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.mark.parametrize("gated", [True, False], ids=["with the gate", "without it"])
def test_a_stolen_sum_is_charged_exactly_if_requests_pass_the_gate(zygote, tmp_path, gated):
    fleet = Deployed(zygote, tmp_path, 5, ["federation.rounds=2", "deployment.wait=600"])
    fleet.serve(steals=True, gated=gated)
    fleet.join_missing()
    assert zygote.wait(fleet.server) != 0
    fleet.stop()
    assert fleet.check_opened_once()  # clients have disclosed what opens the sum
    assert (verify(fleet.run / LEDGER).epsilon > 0) is gated
