"""A mechanism with noise of another law than Skellam's: one class, and clients, server and ledger work with it."""

import hashlib
from fractions import Fraction
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from dordis.dropout_models import RateDropout
from dordis.errors import ParametersRefused
from dordis.ledger.ledger import Budget, Ledger
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import centre
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import NoiseLaw, add_noise, round_up_variance
from dordis.protocols.encoded_sums import mechanism_of
from dordis.protocols.parameters import SEMI_HONEST, check_tables
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.simulation.run import home_of_updates, single_round

DIM, CLIENTS, STEP = 4096, 20, 4


def add_coarse(acc, seed, variance, /, *, subtract=False, first=0):
    """Add four times Skellam noise of a sixteenth of the variance: it adds up, and is not Skellam noise."""
    drawn = np.zeros_like(acc)
    add_noise(drawn, seed, round_up_variance(Fraction(variance) / STEP**2), subtract=subtract, first=first)
    acc += np.uint32(STEP) * drawn


def digest(variance):
    return hashlib.sha256(b"coarse" + str(variance).encode()).digest()


class Coarse(DSkellam, frozen=True, tag="coarse"):
    """Noise in steps of four; what it costs is not the question here."""

    law: ClassVar[NoiseLaw] = NoiseLaw(add_coarse, digest)
    has_price_list: ClassVar[bool] = True


def home_of(protocol, fidelity):
    setting = Setting(ParticipationSchedule(CLIENTS, CLIENTS, 1), dim=DIM)
    design = RoundPlan(XNoise(), setting, 6.0, ThreatModel(SEMI_HONEST), kind=Coarse)
    entropy = np.random.default_rng(7).bytes
    dropout = RateDropout(entropy(32), 0.2, protocol.stages)
    return home_of_updates(design, protocol, lambda u: np.zeros(DIM), entropy, dropout, fidelity)


@pytest.mark.parametrize("protocol", [SECAGG, PLAINTEXT], ids=["secagg", "plaintext"])
@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_clients_add_and_the_server_removes_the_noise_of_the_mechanism(protocol, fidelity, tmp_path):
    home = home_of(protocol, fidelity)
    ledger = Ledger.create(tmp_path / "ledger.jsonl", bytes(32), Budget(None, 1e-5))
    finished = single_round(home, ledger=ledger)
    (output,) = finished.result.outputs
    assert 0 < len(output.survivors) < CLIENTS
    noise = centre(output.total, finished.parameters.bits).astype(np.int64)
    assert not (noise % STEP).any()  # updates are zero: whatever is left is noise of this law, all of it
    assert np.mean(noise**2) == pytest.approx(float(output.left), rel=0.2)  # nine standard deviations
    assert ledger.summary().epsilon > 0


def test_a_client_that_draws_other_noise_refuses_the_tables():
    parameters = home_of(SECAGG, "full").job.design.example()
    check_tables(parameters, Coarse.law)
    with pytest.raises(ParametersRefused, match="noise tables"):
        check_tables(parameters)


def test_there_is_no_clipping_bit_under_another_law():
    parameters = home_of(SECAGG, "full").job.design.example()
    counted = msgspec.structs.replace(parameters, encoding=msgspec.structs.replace(parameters.encoding, bit=8))
    with pytest.raises(ParametersRefused, match="not Skellam noise"):
        mechanism_of(counted, dim=DIM, kind=Coarse)
