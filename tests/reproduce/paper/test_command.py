"""`python -m reproduce all`, `figure` and `table`: sections on standard output, pages as files, one-line refusals."""

import json
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess
from typing import NoReturn

import pytest

from dordis.cli import run_app
from reproduce.commands import app
from reproduce.paper import Job
from reproduce.paper.jobs import cache_path
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


def test_an_interrupted_run_writes_a_page_of_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_early(jobs: Iterable[Job], folder: Path, *_: object) -> NoReturn:
        folder.mkdir(parents=True)
        done = next(job for job in jobs if job.kind == "shares")
        stored = {"seconds": 2.0, "result": {"claims": [["a", "b", "c", "yes"]], "rows": [["x"] * 4]}}
        cache_path(folder, done).write_text(json.dumps(stored))
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduce.paper.command.run_jobs", stop_early)
    shown = run("all", "--cache", tmp_path / "cache", "--output", tmp_path / "pages")
    page = (tmp_path / "pages" / "paper.md").read_text()
    assert shown.returncode == 130
    assert "was interrupted after 0 minutes" in page
    assert "1 jobs were run" in page
    assert "| a | b | c | holds |" in page
    assert "**not run**: 45 of 45 jobs have no result." in page
    again = run("all", "--no-run", "--cache", tmp_path / "cache", "--output", tmp_path / "again")
    assert again.returncode == 0
    assert (tmp_path / "again" / "paper.md").read_text() == page


def test_unknown_numbers_and_scales_are_refused(tmp_path: Path) -> None:
    for wrong in (("figure", "11"), ("table", "4"), ("all", "--no-run", "--scale", "huge")):
        refused = run(*wrong, "--cache", tmp_path)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
