"""The audit of records: it believes real rounds, and finds noise and samples that are not as planned."""

from dataclasses import replace

import pytest

from dordis.apps.audit import audit_records, toy_record_design
from dordis.errors import InputError
from dordis.privacy.mechanisms.distributed import DSkellam
from dordis.privacy.skellam_noise import SKELLAM
from dordis.rounds import records as sampled_records
from tests.apps.audit.test_auditor import entropy_of, times

DESIGN = {"clients": 6, "records": 60, "rounds": 3, "sampling": 0.2, "colluders": 1}


def run(seed, epsilon=2.0, **changes):
    return audit_records(toy_record_design(epsilon=epsilon, **(DESIGN | changes)), 1, 1, entropy=entropy_of(seed))


def test_real_rounds_are_believed_with_dropout_and_a_colluder():
    found = run(0)
    assert not found.findings
    assert found.canaries.canaries == 4 * 60
    assert found.noise.ratio == pytest.approx(1.0, abs=0.1)
    assert found.counted >= 1


def test_noise_that_is_too_small_is_found(monkeypatch):
    monkeypatch.setattr(DSkellam, "law", replace(SKELLAM, add=times(0.5)))
    assert any("smaller than the round states" in words for words in run(4).findings)


@pytest.mark.slow
def test_a_client_that_does_not_sample_is_found_by_the_canaries(monkeypatch):
    """The noise is as planned, and counts on samples that the clients do not draw: only the attack shows it."""
    plain = run(5, epsilon=1.5, sampling=0.02, rounds=40, records=100)
    assert not plain.findings
    everything = lambda seed, sampling, records, cap: sampled_records.np.arange(records)  # noqa: E731
    monkeypatch.setattr(sampled_records, "draw_sample", everything)
    found = run(5, epsilon=1.5, sampling=0.02, rounds=40, records=100)
    assert any("an attack shows epsilon" in words for words in found.findings)


def test_a_design_for_clients_has_no_canary_records():
    from dordis.apps.audit import toy_design

    with pytest.raises(InputError, match="needs records as the unit of privacy"):
        audit_records(toy_design(20))
