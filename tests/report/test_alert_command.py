"""The operator's command is run for each kind of alert, once a day, and never by a shell."""

import sys
import threading
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dordis.errors import InputError
from dordis.report.alert_command import DAY, EXPIRY, AlertCommand, Kind, split_command
from dordis.rounds.watch import AttemptFailed, StageBegan
from dordis.simulation.run import prepare
from tests.simulation.whole_runs import settings_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Now:
    """A thread that runs at once."""

    def __init__(self, target, args, **_):
        self.start = lambda: target(*args)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def raised(monkeypatch):
    """Collect the alerts that would be executed."""
    found = []
    monkeypatch.setattr(AlertCommand, "_execute", lambda self, kind, text: found.append((kind.value, text)))
    monkeypatch.setattr(threading, "Thread", Now)
    return found


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hook(clock):
    return AlertCommand("true", "digits", 6.0, NOW + 2 * EXPIRY, clock, lambda: NOW)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    run = prepare(settings_of("simulation.fidelity=ideal")).start(tmp_path_factory.mktemp("run"), "")
    return next(run.rounds()).record


def test_four_fifths_of_the_budget_and_refusals_are_told(hook, record, raised):
    hook.finish_round(msgspec.structs.replace(record, epsilon=4.7))
    assert raised == []
    hook.finish_round(msgspec.structs.replace(record, epsilon=4.81, dropped={"refused": (3, 5)}))
    assert [kind for kind, _ in raised] == ["budget", "refused"]
    assert "clients 3, 5 refused" in raised[1][1]


def test_an_impossible_sum_is_told_and_other_failures_are_not(hook, raised):
    hook.watch(StageBegan("Unmask"))
    hook.watch(AttemptFailed(3, "too few clients"))
    hook.watch(AttemptFailed(4, "garbage", survivors=(1, 2)))
    cause = "one of the clients 1, 2, or the server, caused it"
    assert raised == [("impossible-sum", f"the sum of round index 4 is impossible and not used; {cause}")]


def test_refusals_by_which_a_round_failed_are_told(clock, raised):
    hook = AlertCommand("true", "digits", 6.0, NOW + 2 * EXPIRY, clock, lambda: NOW, lambda: (2, 5))
    hook.watch(AttemptFailed(3, "too few clients"))
    assert raised == [("refused", "clients 2, 5 refused round index 3")]


def test_a_day_without_a_round_and_an_expiring_certificate_are_told(clock, record, raised):
    hook = AlertCommand("true", "digits", None, NOW + EXPIRY, clock, lambda: NOW + timedelta(seconds=clock.now))
    hook.check_time()
    assert raised == [("certificate", "the server's certificate expires on 2026-01-31")]
    clock.now = DAY / 2
    hook.finish_round(record)
    clock.now = DAY
    hook.check_time()
    assert [kind for kind, _ in raised] == ["certificate", "certificate"]
    clock.now = 1.5 * DAY
    hook.check_time()
    assert raised[-1] == ("no-round", "no round has finished for a day")


def test_an_alert_is_raised_once_a_day(clock, hook, raised):
    for clock.now in (0.0, DAY - 1, DAY):
        hook.watch(AttemptFailed(4, "garbage", survivors=(1,)))
    assert len(raised) == 2


def test_the_command_gets_kind_run_and_text_as_arguments_of_no_shell(tmp_path, clock):
    script, told = tmp_path / "hook.py", tmp_path / "told"
    script.write_text(f"import sys; open({str(told)!r}, 'w').write('|'.join(sys.argv[1:]))")
    hook = AlertCommand(f"{sys.executable} {script}", "a; run", None, NOW, clock, lambda: NOW)
    hook._execute(Kind.BUDGET, "$(text)")
    assert told.read_text() == "budget|a; run|$(text)"


def test_a_command_that_fails_is_logged_and_stops_nothing(clock, caplog):
    hook = AlertCommand("/absent/command", "digits", None, NOW, clock, lambda: NOW)
    hook._execute(Kind.BUDGET, "text")
    assert "the alert command failed" in caplog.text


@pytest.mark.parametrize("command", ["", "  ", "mail 'unclosed"])
def test_a_text_that_is_no_command_is_refused(command):
    with pytest.raises(InputError, match=r"alerts\.command is a program"):
        split_command(command)
