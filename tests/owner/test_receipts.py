"""A client keeps notes and receipts of its rounds; tests/adversary/receipts.py has servers that contradict them."""

import pytest
from msgspec.structs import replace

from dordis import wire
from dordis.errors import HistoryContradicted, InputError
from dordis.ledger.receipt import read_receipt_files
from dordis.owner.receipts import (
    Acknowledged,
    Attended,
    KeptReceipts,
    KeptRun,
    Shown,
    check_own_state,
    read_kept,
)
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.records.run_records import RECEIPTS
from tests.adversary.receipts import finished, job_of, registry_of

KEYS = registry_of(job_of()).signing_keys()
OBSERVER = ClientId(1 << 20)
"""A client that is in no round."""


@pytest.fixture(scope="module")
def true():
    return [Shown(index, one.digest, one) for index, one in read_receipt_files(finished()[0] / RECEIPTS).items()]


def take_part(kept, entry, delivered=True):
    parameters = wire.decode(entry.receipt.agreed, CohortParameters)
    kept.note_attended(parameters)
    if delivered:
        kept.note_delivered(parameters, tuple(map(len, entry.receipt.survivors)))
    return parameters.run


def test_an_honest_history_is_kept_entry_by_entry_and_as_a_whole(true, tmp_path):
    kept = KeptReceipts(tmp_path / "receipts")
    run = take_part(kept, true[0])
    kept.compare(run, [], KEYS, complete=True, me=OBSERVER)
    kept.compare(run, true[:1], KEYS, complete=False, me=OBSERVER)
    take_part(kept, true[1])
    kept.compare(run, true[1:], KEYS, complete=False, me=OBSERVER)
    kept.compare(run, true, KEYS, complete=True, me=OBSERVER)
    found = kept.read(run)
    assert sorted(found.shown) == sorted(found.attended) == sorted(found.delivered) == [0, 1]
    assert len(kept.file(run).read_bytes().splitlines()) == 6
    assert kept.file(run).stat().st_mode & 0o777 == 0o600


def test_only_new_lines_are_decoded_unless_the_file_was_replaced(true, tmp_path, monkeypatch):
    kept = KeptReceipts(tmp_path)
    run = take_part(kept, true[0])
    older = kept.file(run).read_bytes()
    before = kept.read(run)
    decoded = []
    whole = KeptRun.with_lines
    monkeypatch.setattr(KeptRun, "with_lines", lambda self, data, path: decoded.append(data) or whole(self, data, path))
    take_part(kept, true[1])
    newer = kept.file(run).read_bytes()
    assert sorted(kept.read(run).delivered) == [0, 1]
    assert b"".join(decoded) == newer[len(older) :]
    assert sorted(before.delivered) == [0]
    kept.file(run).write_bytes(older)  # a copy from before the second round
    assert sorted(kept.read(run).delivered) == [0]
    kept.file(run).write_bytes(newer[len(older) :] + b"an incomplete line")
    assert sorted(kept.read(run).delivered) == [1]


def test_receipts_that_were_kept_may_be_shown_by_their_hash(true, tmp_path):
    kept = KeptReceipts(tmp_path)
    run = take_part(kept, true[0])
    kept.compare(run, true[:1], KEYS, complete=True, me=OBSERVER)
    kept.compare(run, [Shown(0, true[0].digest), true[1]], KEYS, complete=True, me=OBSERVER)
    assert kept.read(run).shown[0].receipt is not None
    for complete in (True, False):
        with pytest.raises(HistoryContradicted, match="index 0, which it showed before, was replaced"):
            kept.compare(run, [Shown(0, true[1].digest), true[1]], KEYS, complete=complete, me=OBSERVER)


def test_an_attempt_that_failed_needs_no_receipt(true, tmp_path):
    kept = KeptReceipts(tmp_path)
    run = take_part(kept, true[0], delivered=False)
    kept.compare(run, [], KEYS, complete=True, me=OBSERVER)


def test_a_participation_is_noted_once(true, tmp_path):
    kept = KeptReceipts(tmp_path)
    run = take_part(kept, true[0], delivered=False)
    take_part(kept, true[0], delivered=False)
    assert len(kept.file(run).read_bytes().splitlines()) == 1


def test_a_refused_history_leaves_the_file_as_it_was(true, tmp_path):
    kept = KeptReceipts(tmp_path)
    run = take_part(kept, true[0])
    kept.compare(run, true, KEYS, complete=True, me=OBSERVER)
    before = kept.file(run).read_bytes()
    with pytest.raises(HistoryContradicted, match=r"index 1, which it showed before, is missing.*show the file"):
        kept.compare(run, true[:1], KEYS, complete=True, me=OBSERVER)
    assert kept.file(run).read_bytes() == before


def test_a_line_that_was_cut_off_by_a_crash_is_left_out_and_replaced(true, tmp_path):
    kept = KeptReceipts(tmp_path)
    run = take_part(kept, true[0])
    with kept.file(run).open("ab") as file:
        file.write(b'{"type":"Atten')
    take_part(kept, true[1], delivered=False)
    assert sorted(kept.read(run).attended) == [0, 1]


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(b"{}\n")
    with pytest.raises(InputError, match="restore it from a backup"):
        read_kept(tmp_path / "run.jsonl")
    with pytest.raises(InputError, match="cannot read the kept receipts"):
        read_kept(tmp_path / "absent.jsonl")


def test_an_unlisted_client_may_be_missing_from_a_round_until_its_contribution_was_acknowledged(true, tmp_path):
    """A contribution may be lost, or come too late; the parameters are compared in any case."""
    kept, entry = KeptReceipts(tmp_path), true[0]
    parameters = wire.decode(entry.receipt.agreed, CohortParameters)
    run, unseen = parameters.run, [Shown(0, entry.digest)]
    kept._add(run, [Attended(0, parameters.digest.hex(), is_listed=False)])
    kept.compare(run, unseen, KEYS, complete=True, me=OBSERVER)
    kept.note_acknowledged(run, 0)
    kept.note_acknowledged(run, 0)  # the same upload was acknowledged again
    assert len(kept.file(run).read_bytes().splitlines()) == 3
    late = KeptReceipts(tmp_path / "late")
    late._add(run, [Attended(0, parameters.digest.hex(), is_listed=False), Acknowledged(0)])
    late.compare(run, [], KEYS, complete=True, me=OBSERVER)  # the round may have failed
    with pytest.raises(HistoryContradicted, match="says that this client was not in round index 0"):
        late.compare(run, unseen, KEYS, complete=True, me=OBSERVER)
    other = KeptReceipts(tmp_path / "other")
    other._add(run, [Attended(0, "00" * 32, is_listed=False)])
    with pytest.raises(HistoryContradicted, match="other parameters than this client agreed to"):
        other.compare(run, [entry], KEYS, complete=True, me=OBSERVER)


def test_lines_of_rounds_that_list_their_clients_have_not_changed(true, tmp_path):
    kept = KeptReceipts(tmp_path)
    run = take_part(kept, true[0], delivered=False)
    assert kept.file(run).read_bytes() == (
        b'{"type":"Attended","index":0,"parameters":"%s"}\n' % true[0].receipt.parameters.encode()
    )


def test_a_state_without_a_note_of_its_own_round_is_refused(true, tmp_path):
    """A client whose state is an old copy would count too few participations."""
    me, absent = ClientId(true[1].receipt.survivors[0][0]), ClientId(true[1].receipt.clients[-1])
    kept = KeptReceipts(tmp_path / "old")
    run = take_part(kept, true[0])
    kept.compare(run, true[:1], KEYS, complete=True, me=me)
    before = kept.file(run).read_bytes()
    with pytest.raises(HistoryContradicted, match=r"round index 1 has the input of this client.*is an old copy"):
        kept.compare(run, true, KEYS, complete=True, me=me)
    assert kept.file(run).read_bytes() == before
    take_part(kept, true[1])
    kept.compare(run, true, KEYS, complete=True, me=me)
    lost = KeptReceipts(tmp_path / "lost")
    with pytest.raises(HistoryContradicted, match="round index 0 has the input of this client"):
        lost.compare(run, true, KEYS, complete=True, me=me)
    survivors = tuple(tuple(u for u in chunk if u != absent) for chunk in true[1].receipt.survivors)
    dropped = replace(true[1].receipt, survivors=survivors)
    check_own_state(
        KeptRun(), [Shown(1, dropped.digest, dropped)], absent, tmp_path
    )  # it dropped out before its upload
