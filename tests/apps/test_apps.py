"""Options become settings, and what all clients share is made once."""

import msgspec
import pytest

from dordis.apps import build_once
from dordis.errors import InputError
from dordis.rounds.app import Task


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1
    name: str = ""


def test_equal_tasks_share_what_is_made():
    made = []
    make = build_once(Settings, lambda settings, task: made.append((settings, task.population, task.seed)) or object())
    first = make(Task({"size": 2, "name": "a"}, 3, 4))
    assert make(Task({"name": "a", "size": 2}, 3, 4)) is first
    assert made == [(Settings(2, "a"), 3, 4)]
    assert make(Task({"size": 2}, 3, 4)) is not first
    assert make(Task({"size": 2}, 3, 5)) is not first


@pytest.mark.parametrize("options", [{"size": "x"}, {"sise": 1}])
def test_options_that_do_not_fit_are_an_input_error(options):
    with pytest.raises(InputError, match="options"):
        build_once(Settings, lambda *_: None)(Task(options, 1))
