"""`dordis audit`: what it shows, and that its exit code tells what it found."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import typer

from dordis.cli.commands.audit import audit as command
from dordis.privacy import skellam_noise as seeded
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.skellam_noise import round_up_variance
from tests.cli.in_process import dordis

run = partial(dordis, "audit")


def test_the_table_says_what_was_measured_and_that_nothing_was_found() -> None:
    shown = run("--clients", "40", "--epsilon", "0.5")
    assert shown.returncode == 0, shown.stderr
    told = " ".join(shown.stdout.split())
    for expected in ("One round of secagg", "noise in the sum", "hidden from colluders", "99.9% confidence", "nothing"):
        assert expected in told
    assert "2 collude" in told


def test_json_is_one_object() -> None:
    options = ("--clients", "60", "--rounds", "2", "--epsilon", "0.5", "--scheme", "exact", "--protocol", "plaintext")
    found = json.loads(run(*options, "--dropped", "4", "--late", "3", "--colluders", "2", "--json").stdout)
    assert (found["clients"], found["rounds"], found["dropped"], found["late"], found["colluders"]) == (60, 2, 4, 3, 2)
    assert (found["found"], found["canaries"]["canaries"], found["noise"]["samples"]) == (False, 54, 2048)
    assert 0 <= found["canaries"]["shown"] <= found["canaries"]["claimed"] <= 0.5
    assert found["counted"] >= 1


@pytest.mark.slow
def test_a_faulty_mechanism_gives_exit_code_1_after_the_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faint(acc, seed, variance, *, subtract=False):  # type: ignore[no-untyped-def]
        seeded.add_noise(acc, seed, round_up_variance(variance * Fraction(1, 2)), subtract=subtract)

    monkeypatch.setattr(DSkellam, "law", replace(seeded.SKELLAM, add=faint))
    for as_json in (True, False):
        with pytest.raises(typer.Exit) as ended:
            command(clients=40, epsilon=0.5, as_json=as_json)
        assert ended.value.exit_code == 1
        told = capsys.readouterr().out
        assert json.loads(told)["found"] is True if as_json else "FOUND" in told


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--clients", "5"), "10 to 2000"),
        (("--clients", "2001"), "10 to 2000"),
        (("--rounds", "0"), "rounds"),
        (("--rounds", "1001"), "rounds"),
        (("--clients", "100", "--dropped", "90"), "drop out"),
        (("--clients", "100", "--late", "90"), "leave after"),
        (("--clients", "100", "--epsilon", "9"), "at best"),
        (("--clients", "100", "--colluders", "100"), "colluders"),
        (("--scheme", "orig"), "'single' or 'exact'"),
        (("--protocol", "none"), "protocol"),
        (("--epsilon", "-1"), "epsilon"),
        (("--rounds", "many"), "integer"),
    ],
)
def test_an_audit_that_cannot_be_made_is_refused_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    shown = run(*arguments)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert reason in shown.stderr
