"""Receipts and runs are verified offline with the keys of a registry; tests/adversary/receipts.py tampers with them."""

from pathlib import Path

import msgspec
import pytest

from dordis.errors import InputError, LedgerDamaged
from dordis.ledger.receipt import read_receipt_files
from dordis.ledger.verification import verify_receipt, verify_run
from dordis.records import run_records
from dordis.records.run_records import RECEIPTS
from dordis.simulation.run import prepare
from tests.adversary.receipts import CLIENTS, finished, job_of, registry_of
from tests.simulation.whole_runs import settings_of


@pytest.fixture(scope="module")
def receipts():
    return read_receipt_files(finished()[0] / RECEIPTS)


def test_a_run_against_a_malicious_server_is_signed_in_every_round():
    verified = verify_run(run_records.load_run(finished()[0]), registry_of(job_of()))
    assert verified.signed_rounds == len(verified.receipts) == 2
    for one in verified.receipts:
        assert all(set(signers) <= set(range(1, CLIENTS + 1)) for signers in one.signers)
        assert min(map(len, one.signers)) >= one.parameters.quorum
    assert verified.summary.stated.epsilon == pytest.approx(4.0, rel=1e-3)


def test_without_a_registry_no_round_counts_as_signed():
    verified = verify_run(run_records.load_run(finished()[0]))
    assert (verified.signed_rounds, verified.has_registry) == (0, False)


def test_signatures_that_were_removed_are_missed(receipts):
    bare = msgspec.structs.replace(receipts[0], signatures=({},))
    assert not verify_receipt(bare).is_signed
    with pytest.raises(LedgerDamaged, match="quorum"):
        verify_receipt(bare, registry_of(job_of()).signing_keys())


def test_a_receipt_of_a_foreign_protocol_loads_nothing(receipts):
    with pytest.raises(InputError, match="does not come with dordis"):
        verify_receipt(msgspec.structs.replace(receipts[0], protocol="os:system"))


@pytest.mark.parametrize("mode", ["malicious", "semi-honest"])
@pytest.mark.parametrize("noise", ["xnoise", "orig", "local", "central", "none"])
def test_runs_of_every_noise_verify(noise: str, mode: str, tmp_path: Path):
    keys = (f"privacy.noise.kind={noise}", f"protocol.mode={mode}", "simulation.fidelity=ideal")
    under_way = prepare(settings_of(*keys)).start(tmp_path, "")
    under_way.complete()
    verified = verify_run(run_records.load_run(under_way.records.path))
    assert len(verified.receipts) == len(run_records.load_run(under_way.records.path).rounds) > 0
    assert (verified.summary is None) == (noise == "none")
