"""`python -m reproduce all`, `figure` and `table`: sections on standard output, pages as files, one-line refusals."""

from pathlib import Path
from subprocess import CompletedProcess

from dordis.cli import run_app
from reproduce.commands import app
from tests.cli.in_process import run_command


def run(*arguments: object) -> CompletedProcess[str]:
    return run_command(lambda: run_app(app, "reproduce"), "reproduce", *arguments)


def test_a_drawn_figure_is_printed_with_its_verdicts(tmp_path: Path) -> None:
    shown = run("figure", "4", "--cache", tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("## Figure 4")
    assert "| 1/4, 1/12, 1/6 | 1/4, 1/12, 1/6 | holds |" in shown.stdout


def test_pages_are_written_without_running_anything(tmp_path: Path) -> None:
    shown = run("all", "--no-run", "--cache", tmp_path / "cache", "--output", tmp_path / "pages")
    assert shown.returncode == 0, shown.stderr
    assert "**not run**" in (tmp_path / "pages" / "paper.md").read_text()
    assert (tmp_path / "pages" / "paper.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "cache").exists()


def test_unknown_numbers_and_scales_are_refused(tmp_path: Path) -> None:
    for wrong in (("figure", "11"), ("table", "4"), ("all", "--no-run", "--scale", "huge")):
        refused = run(*wrong, "--cache", tmp_path)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
