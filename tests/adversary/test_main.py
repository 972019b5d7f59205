"""`make attack` prints which check refuses each attack, and its exit code says whether one succeeded."""

import json

import pytest
import typer
from typer.testing import CliRunner

from dordis.errors import ProtocolError
from tests.adversary import suite
from tests.adversary.__main__ import attack
from tests.adversary.attack import Attack
from tests.adversary.participants import COMPLETE
from tests.adversary.session import Session
from tests.adversary.suite import ATTACKS


def knock(session: Session) -> str:
    session.trail.stage = "the door"
    raise ProtocolError("nobody at home")


HARMLESS = Attack("knock", "Somebody knocks.", knock, refused_by="nobody", stage="the door", graphs=(COMPLETE,))
HARMFUL = Attack(
    "break in", "Somebody breaks in.", lambda session: "the silver", refused_by="", stage="", graphs=(COMPLETE,)
)


def run(monkeypatch: pytest.MonkeyPatch, attacks: tuple[Attack, ...], *options: str) -> tuple[int, str]:
    """Run the command with these attacks; return its exit code and output."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(suite, "ATTACKS", attacks)
    app = typer.Typer()
    app.command()(attack)
    ended = CliRunner().invoke(app, options)
    return ended.exit_code, ended.stdout


@pytest.mark.slow
def test_the_whole_suite_is_refused_and_printed_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown = run(monkeypatch, ATTACKS, "--json")
    report = json.loads(shown)
    assert code == 0
    assert report["attacks"] == len(report["results"]) == sum(len(attack.graphs) for attack in ATTACKS)
    assert report["succeeded"] == 0
    first = report["results"][0]
    assert {"attack", "graph", "succeeded", "refused_by", "stage", "detail"} == first.keys()
    assert all(result["refused_by"] and result["stage"] for result in report["results"])


def test_the_table_has_the_check_and_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown = run(monkeypatch, (HARMLESS,))
    assert code == 0
    assert all(text in shown for text in ("knock", "complete", "ProtocolError", "the door"))
    assert shown.splitlines()[-1] == "1 attacks in 1 runs, 0 succeeded"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_attack_that_succeeds_gives_exit_code_1(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown = run(monkeypatch, (HARMLESS, HARMFUL), *options)
    assert code == 1
    if options:
        assert json.loads(shown)["succeeded"] == 1
    else:
        assert "SUCCEEDED: the silver" in shown
        assert shown.splitlines()[-1] == "2 attacks in 2 runs, 1 succeeded"
