"""Settings: the protocol's defaults, and errors for values that no round can have."""

import math
from dataclasses import replace
from typing import Any

import pytest

from dordis.errors import InputError
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.setting import Setting
from dordis.privacy.xnoise_components import Scheme

FEMNIST = Setting(ParticipationSchedule(1000, 100, 50), dim=1_018_174, delta=1e-3, bits=20)


def test_defaults_are_those_of_the_protocol() -> None:
    setting = Setting(ParticipationSchedule(1000, 100, 50), dim=10)
    assert (setting.t, setting.T, setting.given_delta) == (51, 39, 1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta": 1e-30}, "noise tables"),
        ({"clip": 0.0}, "clip"),
        ({"clip": -1.0}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"dim": 0}, "coordinates"),
        ({"dim": 2**31 + 1}, "coordinates"),
        ({"bits": 0}, "bits"),
        ({"bits": 33}, "bits"),
        ({"headroom": 0.0}, "headroom"),
        ({"headroom": math.nan}, "headroom"),
        ({"tolerance": 50}, "dropout tolerance 50 must lie in 0..49"),
        ({"tolerance": -1}, "dropout tolerance -1"),
        ({"threshold": 101}, "threshold"),
        ({"threshold": 51, "colluders": 51}, "51 colluders"),
        ({"colluders": -1}, "-1 colluders"),
        ({"scheme": Scheme.NONE}, "nothing to plan"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        replace(FEMNIST, **change)
