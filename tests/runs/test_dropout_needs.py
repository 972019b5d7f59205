"""T and t of a dropout rate: named in refusals, and enough for real rounds."""

from pathlib import Path

import pytest

from dordis.config.reading import config_to_toml, read_config
from dordis.errors import InputError, TooFewClients, TooManyDropouts
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.setting import Setting
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.runs.dropout_needs import describe_rates, describe_remedy, find_needs
from dordis.simulation.run import prepare

BEFORE = ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.4", 'simulation.dropout.stages=["CollectInput"]')
SMALL = ("simulation.fidelity=ideal", "federation.rounds=1")


def setting(n: int) -> Setting:
    return Setting(ParticipationSchedule(10 * n, n, 10), dim=100, colluders=1)


@pytest.mark.parametrize(("n", "T", "t"), [(100, 40, 51), (16, 6, 9), (20, 8, 11)])
def test_the_papers_cohorts_need_more_than_the_default_tolerance_at_40_percent(n: int, T: int, t: int) -> None:
    assert setting(n).T == T - 1
    needs = find_needs(setting(n), MALICIOUS, T)
    assert (needs.dropped, needs.threshold) == (T, t)


def test_more_than_half_can_drop_out_of_semi_honest_rounds_only() -> None:
    assert find_needs(setting(100), SEMI_HONEST, 60).threshold == 40
    needs = find_needs(setting(100), MALICIOUS, 60)
    assert needs.threshold is None
    assert "semi-honest" in str(needs)
    assert describe_rates(setting(10), MALICIOUS).endswith("40%: tolerance 4, threshold 6")


def test_a_failed_round_is_told_the_settings_that_it_lacked() -> None:
    assert "protocol.tolerance = 40" in describe_remedy(setting(100), MALICIOUS, TooManyDropouts(40, 39))
    assert "protocol.threshold = 45" in describe_remedy(setting(100), SEMI_HONEST, TooFewClients("Unmask", 45, 51))


def test_a_dropout_rate_that_no_round_survives_is_refused_and_runs_with_the_proposed_settings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"protocol\.tolerance = 20 and protocol\.threshold = 26"):
        prepare(read_config(keys=[*SMALL, *BEFORE]))
    config = read_config(keys=[*SMALL, *BEFORE, "protocol.tolerance=20", "protocol.threshold=26"])
    result = prepare(config).start(tmp_path, config_to_toml(config)).complete()
    assert result.rounds == 1
