"""Two hundred runs from seeds are what they were: messages, ledgers, records, receipts and models, byte for byte.

Where a change of a format is meant, `python -m tests.vectors.make_frozen` freezes them anew; `--show N` on both
versions tells which message of run N differs first.
"""

from collections import Counter

import pytest

from tests.seeded_runs import AXES, Transcript, arithmetic, freeze
from tests.vectors.make_frozen import COUNT, stored

FROZEN = stored()
SAMPLE = 12
"""Of so many runs one is tried in every test run."""


def marked(number: int) -> object:
    return pytest.param(number, marks=() if number % SAMPLE == 0 else pytest.mark.slow)


@pytest.fixture(scope="module")
def same_arithmetic():
    if arithmetic() != FROZEN["arithmetic"]:
        pytest.skip("this machine's floating point differs in the last bits, and plans follow from it")


@pytest.mark.parametrize("number", [marked(number) for number in range(COUNT)])
def test_a_run_from_a_seed_is_what_it_was(number, same_arithmetic):
    frozen = FROZEN["runs"][number]
    found = {"choice": frozen["choice"], **freeze(frozen["choice"], number)[0]}
    assert found == frozen


def test_all_choices_are_frozen_many_times_and_no_run_twice():
    choices = [run["choice"] for run in FROZEN["runs"]]
    assert len({tuple(choice.items()) for choice in choices}) == len(choices) == COUNT
    assert all(choice.keys() == AXES.keys() for choice in choices)
    for axis, values in AXES.items():
        counts = Counter(choice[axis] for choice in choices)
        assert counts.keys() == values.keys()
        assert min(counts.values()) >= 5, axis
    kinds = Counter((c["protocol"], c["mode"], c["noise"], c["fidelity"]) for c in choices)
    impossible = {"plaintext": {"malicious"}}
    for protocol in AXES["protocol"]:
        for mode in AXES["mode"].keys() - impossible.get(protocol, set()):
            assert {kind[2] for kind in kinds if kind[:2] == (protocol, mode)} >= {"single", "exact", "orig"}


def test_most_runs_finish_and_some_fail():
    ended = Counter(run["ended"] for run in FROZEN["runs"])
    assert COUNT > ended[""] >= 0.7 * COUNT
    assert all(run["rounds"] for run in FROZEN["runs"] if not run["ended"])


def test_a_frozen_run_tells_one_changed_byte():
    number = next(i for i, run in enumerate(FROZEN["runs"]) if run["messages"])
    choice = FROZEN["runs"][number]["choice"]
    before, transcript = freeze(choice, number)
    again, _ = freeze(choice, number)
    assert again == before
    assert sum(map(len, transcript.lines.values())) == before["messages"]
    other = Transcript({place: [*lines] for place, lines in transcript.lines.items()})
    place = next(iter(other.lines))
    kind, found = other.lines[place][-1]
    other.lines[place][-1] = kind, found[::-1]
    assert other.digest() != before["transcript"]
    assert freeze(choice, number + 1)[0]["transcript"] != before["transcript"]  # another seed
