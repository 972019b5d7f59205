"""`dordis report`: it says where the page is, opens it if asked, and refuses in one error."""

import webbrowser
from pathlib import Path

import pytest

from dordis.cli.commands.report import report
from dordis.errors import InputError
from tests.report.runs import make


def test_it_prints_the_path_and_opens_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    path = make(tmp_path)
    report([path], None, figures=False, show=False)
    assert capsys.readouterr().out == f"{path / 'report.html'}\n"
    assert opened == []
    assert not (path / "figures").exists()


def test_it_opens_the_page_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    report([make(tmp_path)], tmp_path, figures=True, show=True)
    assert opened == [(tmp_path / "report.html").as_uri()]
    assert (tmp_path / "figures" / "epsilon.svg").exists()


def test_without_a_browser_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    report([make(tmp_path)], None, figures=False, show=True)
    assert "no browser" in capsys.readouterr().err


def test_a_page_is_no_directory_to_write_into(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--output takes a directory"):
        report([make(tmp_path)], tmp_path / "mine.html", figures=False, show=False)
    assert not (tmp_path / "mine.html").exists()


def test_a_missing_run_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run"):
        report([tmp_path / "nowhere"], tmp_path, figures=True, show=False)
    assert not list(tmp_path.iterdir())
