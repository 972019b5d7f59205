"""`dordis audit`: what it shows, and that it refuses a mechanism that it refutes."""

import json
from functools import partial

import pytest

from dordis.cli.commands.audit import audit as command
from dordis.errors import AuditFailed
from dordis.privacy import noise as seeded
from dordis.protocols.plaintext import client, server
from tests.cli.commands import dordis

run = partial(dordis, "audit")


def test_the_table_shows_the_claim_and_what_the_attack_shows() -> None:
    shown = run("--clients", "300")
    assert shown.returncode == 0, shown.stderr
    for expected in ("300 clients", "epsilon, delta claimed", "epsilon shown, at least", "99% confidence", "stands"):
        assert expected in shown.stdout


def test_json_is_one_object() -> None:
    shown = run("--clients", "300", "--rounds", "2", "--epsilon", "1", "--dropped", "0", "--json")
    found = json.loads(shown.stdout)
    assert (found["clients"], found["canaries"], found["rounds"], found["refuted"]) == (300, 300, 2, False)
    assert 0 <= found["shown"] <= found["claimed"] <= 1
    assert found["correct"] <= found["guesses"] <= 300


def test_a_faulty_mechanism_is_refused_after_the_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faint(acc, seed, variance, *, subtract=False):  # type: ignore[no-untyped-def]
        seeded.add_noise(acc, seed, seeded.rounded_up(variance / 100**2), subtract=subtract)

    for party in (client, server):
        monkeypatch.setattr(party, "add_noise", faint)
    with pytest.raises(AuditFailed, match="claims 2"):
        command(clients=300, as_json=True)
    assert json.loads(capsys.readouterr().out)["refuted"] is True


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--clients", "5"), "10 to 2000"),
        (("--clients", "2001"), "10 to 2000"),
        (("--rounds", "0"), "rounds"),
        (("--rounds", "1001"), "rounds"),
        (("--clients", "100", "--dropped", "90"), "drop out"),
        (("--clients", "100", "--epsilon", "9"), "at best"),
        (("--epsilon", "-1"), "epsilon"),
        (("--rounds", "many"), "integer"),
    ],
)
def test_an_audit_that_cannot_be_made_is_refused_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    shown = run(*arguments)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert reason in shown.stderr
