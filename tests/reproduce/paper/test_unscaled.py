"""The artifact's noise: smaller than the planned one by the scale, and counted as what it is."""

import numpy as np
import pytest

from dordis.errors import ParametersRefused
from dordis.privacy import encoding
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.privacy.xnoise_components import Scheme
from reproduce.paper.unscaled import UnscaledSkellam

SETTING = Setting(ParticipationSchedule(100, 16, 15), dim=4096, clip=3.0, bits=20, scheme=Scheme.ORIG, colluders=0)


def test_the_noise_lacks_the_scale() -> None:
    planned = plan(SETTING, 6.0)
    mechanism = UnscaledSkellam.from_plan(planned)
    (share,) = planned.noise.base
    assert float(mechanism.variance) == pytest.approx(float(share) / planned.scale**2, rel=1e-4)
    encoded = mechanism.encode(np.zeros(4096), bytes(32))
    noise = encoding.decode(encoded, mechanism.grid, bytes(32))
    missing = np.sqrt(float(share)) / planned.scale / noise.std()
    assert missing == pytest.approx(planned.scale, rel=0.3)


def test_xnoise_is_refused() -> None:
    with pytest.raises(ParametersRefused, match="orig"):
        UnscaledSkellam.from_plan(plan(Setting(SETTING.participation, dim=100), 6.0))


@pytest.mark.torch
def test_the_model_has_at_most_100_000_parameters() -> None:
    pytest.importorskip("torch")
    from reproduce.paper.artifact import PARAMETERS
    from reproduce.paper.small_cnn import SmallCnn

    assert sum(p.numel() for p in SmallCnn(3072, 10).parameters()) == PARAMETERS <= 100_000
