"""`dordis attack`: what it prints, and that an attack that succeeds does not go unnoticed."""

import json
import sys

import pytest

from dordis.adversary.attack import Attack
from dordis.adversary.participants import COMPLETE
from dordis.adversary.session import Session
from dordis.adversary.suite import ATTACKS
from dordis.cli import main
from dordis.errors import ProtocolError
from tests.cli.commands import dordis


def knock(session: Session) -> str:
    session.trail.stage = "the door"
    raise ProtocolError("nobody at home")


HARMLESS = Attack("knock", "Somebody knocks.", knock, graphs=(COMPLETE,))
HARMFUL = Attack("break in", "Somebody breaks in.", lambda session: "the silver", graphs=(COMPLETE,))


def run(monkeypatch: pytest.MonkeyPatch, attacks: tuple[Attack, ...], *options: str) -> int:
    monkeypatch.setattr("dordis.adversary.suite.ATTACKS", attacks)
    monkeypatch.setattr(sys, "argv", ["dordis", "attack", *options])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


@pytest.mark.slow
def test_the_whole_suite_is_refused_and_printed_as_json() -> None:
    shown = dordis("attack", "--json")
    assert shown.returncode == 0, shown.stderr
    report = json.loads(shown.stdout)
    assert report["attacks"] == len(report["results"]) == sum(len(attack.graphs) for attack in ATTACKS)
    assert report["succeeded"] == 0
    first = report["results"][0]
    assert {"attack", "graph", "succeeded", "refused_by", "stage", "detail"} == first.keys()
    assert all(result["refused_by"] and result["stage"] for result in report["results"])


def test_the_table_tells_who_refused_and_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, (HARMLESS,)) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("knock", "complete", "ProtocolError", "the door"))
    assert shown.splitlines()[-1] == "1 attacks in 1 runs, 0 succeeded"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_attack_that_succeeds_is_an_exit_code(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, (HARMLESS, HARMFUL), *options) == 1
    shown = capsys.readouterr().out
    if options:
        assert json.loads(shown)["succeeded"] == 1
    else:
        assert "NOBODY: the silver" in shown
        assert shown.splitlines()[-1] == "2 attacks in 2 runs, 1 succeeded"
