"""A helper's state on disk: claims that last, keys that are gone once erased, older copies that are noticed."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.network.helper_directory import BoxJournal, FileHelperStore, ServedRounds
from dordis.protocols.assisted.helper import AssistedHelper
from dordis.protocols.assisted.messages import Introduce, OpenBoxes
from tests.protocols.assisted.parties import Round, Served

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def store_at(path):
    return FileHelperStore(path / "values", path / "h.count")


def test_a_claim_lasts_and_no_second_one_is_taken(tmp_path):
    assert store_at(tmp_path).claim("survivors/1", b"first") == b"first"
    again = store_at(tmp_path)
    assert again.claim("survivors/1", b"second") == b"first"
    assert again.get("survivors/2") is None


def test_an_erased_value_is_gone_from_the_disk_and_not_claimed_again(tmp_path):
    store = store_at(tmp_path)
    store.claim("epoch/run/0", b"private half")
    store.erase("epoch/run/0")
    for same in (store, store_at(tmp_path)):
        assert same.get("epoch/run/0") == b""
        assert same.keys("epoch/") == []
        assert same.claim("epoch/run/0", b"another half") == b""
    assert not any(b"half" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_keys_of_an_older_copy_are_erased_and_claims_stay(tmp_path):
    store = store_at(tmp_path)
    store.claim("epoch/run/0", b"private half")
    store.claim("survivors/0", b"digest")
    shutil.copytree(tmp_path / "values", tmp_path / "copy")
    store.claim("survivors/1", b"digest")
    shutil.rmtree(tmp_path / "values")
    shutil.move(tmp_path / "copy", tmp_path / "values")
    restored = store_at(tmp_path)
    assert restored.is_older_copy
    assert (restored.get("epoch/run/0"), restored.get("survivors/0")) == (b"", b"digest")


@pytest.mark.parametrize("kept", ["nothing", "an older copy"])
def test_no_epoch_gets_a_second_key_after_the_directory_was_lost(tmp_path, kept):
    store = store_at(tmp_path)
    store.claim("epoch/run/0", b"private half")
    shutil.copytree(tmp_path / "values", tmp_path / "copy")
    store.claim("epoch/run/1", b"private half")
    shutil.rmtree(tmp_path / "values")
    if kept == "an older copy":
        shutil.move(tmp_path / "copy", tmp_path / "values")
    restored = store_at(tmp_path)
    assert restored.is_older_copy
    assert [restored.claim(f"epoch/run/{epoch}", b"another half") for epoch in (0, 1, 2)] == [b"", b"", b"another half"]
    assert restored.claim("epoch/other/0", b"another half") == b"another half"
    again = store_at(tmp_path)  # keys that were made since then are not those of an older copy
    assert not again.is_older_copy
    assert [again.get(f"epoch/run/{epoch}") or b"" for epoch in (0, 1, 2)] == [b"", b"", b"another half"]


def test_a_copy_is_older_however_often_it_is_restored(tmp_path):
    store = store_at(tmp_path)
    store.claim("epoch/run/0", b"private half")
    shutil.copytree(tmp_path / "values", tmp_path / "copy")
    store.claim("survivors/0", b"digest")
    for _ in range(2):
        shutil.rmtree(tmp_path / "values")
        shutil.copytree(tmp_path / "copy", tmp_path / "values")
        restored = store_at(tmp_path)
        assert restored.is_older_copy
        assert restored.get("epoch/run/0") == b""


def test_a_value_that_was_stored_and_not_counted_is_counted_after_the_restart(tmp_path):
    store = store_at(tmp_path)
    store.claim("epoch/run/0", b"private half")
    shutil.copytree(tmp_path / "values", tmp_path / "copy")
    count = (tmp_path / "h.count").read_bytes()
    store.claim("survivors/0", b"digest")
    (tmp_path / "h.count").write_bytes(count)  # the process stopped before it counted
    assert store_at(tmp_path).claim("survivors/0", b"another") == b"digest"
    shutil.rmtree(tmp_path / "values")
    shutil.move(tmp_path / "copy", tmp_path / "values")
    assert store_at(tmp_path).is_older_copy


@pytest.mark.parametrize(
    ("damaged", "content"), [("h.count", "many"), ("h.count", "1\nrun many"), ("values/lost", "?")]
)
def test_a_damaged_count_is_an_error(tmp_path, damaged, content):
    store_at(tmp_path).claim("survivors/0", b"digest")
    (tmp_path / damaged).write_text(content)
    with pytest.raises(InputError, match="restore it"):
        store_at(tmp_path)


def test_a_restarted_helper_shows_the_same_keys(tmp_path):
    def keys():
        helper = AssistedHelper(1, secret=bytes(range(32)), registry={}, store=store_at(tmp_path))
        return helper.handle(Introduce(bytes(32) + (7).to_bytes(8, "big")))

    assert keys() == keys()


def test_boxes_of_the_latest_round_are_read_again_without_an_incomplete_one(tmp_path):
    parameters = Round().parameters
    first, journal = OpenBoxes(parameters, {}), BoxJournal(tmp_path / "boxes")
    journal.append(first)
    journal.append(first)
    (path,) = (tmp_path / "boxes").iterdir()
    with path.open("ab") as file:
        file.write((1000).to_bytes(8, "big") + b"cut short")
    again = BoxJournal(tmp_path / "boxes")
    again.cut()
    assert again.read() == [first]
    other = OpenBoxes(Round().agree(index=4), {})
    again.append(other)
    assert BoxJournal(tmp_path / "boxes").read() == [other]


def test_boxes_that_come_again_in_other_requests_take_no_disk(tmp_path):
    served, journal = Served(), BoxJournal(tmp_path / "boxes")
    journal.append(OpenBoxes(served.parameters, served.entries(1, (1, 2, 3))))
    (path,) = (tmp_path / "boxes").iterdir()
    size = path.stat().st_size
    for some in ((1,), (2,), (1, 2), (2, 3)):
        journal.append(OpenBoxes(served.parameters, served.entries(1, some)))
    assert path.stat().st_size == size
    journal.append(OpenBoxes(served.parameters, served.entries(1, (3, 4))))
    assert [sorted(request.entries) for request in journal.read()] == [[1, 2, 3], [4]]


def test_rounds_of_a_day_are_bounded_and_known_ones_served(tmp_path):
    served = ServedRounds(tmp_path / "rounds")
    served.serve(b"one", NOW, 2)
    served.serve(b"two", NOW, 2)
    served.serve(b"one", NOW, 2)
    with pytest.raises(ParametersRefused, match="rounds_a_day"):
        served.serve(b"three", NOW + timedelta(hours=23), 2)
    served.serve(b"three", NOW + timedelta(hours=25), 2)
