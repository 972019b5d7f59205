"""A helper's state on disk: claims that last, keys that are gone once erased, older copies that are noticed."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.network.helper_state import BoxJournal, FileHelperStore, ServedRounds
from dordis.protocols.assisted.helper import AssistedHelper
from dordis.protocols.assisted.messages import Introduce, OpenBoxes
from tests.protocols.assisted.parties import Round

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


def test_a_damaged_count_is_an_error(tmp_path):
    store_at(tmp_path).claim("survivors/0", b"digest")
    (tmp_path / "h.count").write_text("many")
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


def test_rounds_of_a_day_are_bounded_and_known_ones_served(tmp_path):
    served = ServedRounds(tmp_path / "rounds")
    served.serve(b"one", NOW, 2)
    served.serve(b"two", NOW, 2)
    served.serve(b"one", NOW, 2)
    with pytest.raises(ParametersRefused, match="rounds_a_day"):
        served.serve(b"three", NOW + timedelta(hours=23), 2)
    served.serve(b"three", NOW + timedelta(hours=25), 2)
