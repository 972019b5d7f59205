"""Jobs: what is cached is not run again, and errors are not cached."""

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reproduce.paper import Job
from reproduce.paper.jobs import Finished, Progress, cache_path, read_cached, run_job, run_jobs

MISSING = Job("training", {"preset": "mnist-writers", "keys": [], "metric": "accuracy", "trace": 0}, "needs data")


class Told(Progress):
    """Keep what is reported."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def start(self, job: Job) -> None:
        self.lines.append((job.label, "starts"))

    def end(self, job: Job, finished: Finished) -> None:
        self.lines.append((job.label, finished.error))


def die(arguments: Mapping[str, Any], data_dir: Path | None) -> None:
    """End this process as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(arguments: Mapping[str, Any], data_dir: Path | None) -> None:
    """Raise what no job expects."""
    raise ZeroDivisionError("nothing to divide by")


def interrupt(arguments: Mapping[str, Any], data_dir: Path | None) -> None:
    """Interrupt the process that started this worker, and go on."""
    with tempfile.TemporaryDirectory(dir=data_dir):
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(3600)


def test_the_cache_depends_on_kind_and_arguments(tmp_path: Path) -> None:
    paths = {cache_path(tmp_path, Job(kind, {"n": n}, "x")) for kind in ("a", "b") for n in (1, 2)}
    assert len(paths) == 4


def test_a_cached_result_is_not_run_again(tmp_path: Path) -> None:
    job = Job("no such kind", {}, "done before")
    cache_path(tmp_path, job).write_text(json.dumps({"label": job.label, "seconds": 2.0, "result": [1]}))
    found = run_jobs([job], tmp_path, None, 1, Told())
    assert (found[job.label].result, found[job.label].seconds) == ([1], 2.0)


def test_a_job_without_its_data_says_so() -> None:
    finished = run_job(MISSING.kind, MISSING.arguments, None)
    assert (finished.result, finished.error) == (None, "needs data: give --data-dir")


@pytest.mark.slow
def test_jobs_run_in_processes_of_their_own_and_errors_are_not_cached(tmp_path: Path) -> None:
    told = Told()
    found = run_jobs([MISSING], tmp_path, None, 1, told)
    assert found[MISSING.label].error == "needs data: give --data-dir"
    assert read_cached(tmp_path, [MISSING]) == {}
    assert told.lines == [(MISSING.label, "starts"), (MISSING.label, "needs data: give --data-dir")]


def draft(kind: str, label: str, alone: bool = False) -> Job:
    return Job(kind, {}, label, alone)


@pytest.mark.slow
def test_a_job_that_fails_and_a_worker_that_dies_leave_the_others_alone(tmp_path: Path) -> None:
    here = "tests.reproduce.paper.test_jobs"
    jobs = [draft(f"{here}:die", "a"), draft(f"{here}:fail", "b", alone=True), draft(f"{here}:fail", "c"), MISSING]
    told = Told()
    found = run_jobs(jobs, tmp_path, None, 1, told)
    assert "BrokenProcessPool" in found["a"].error
    assert found["b"].error == found["c"].error == "ZeroDivisionError: nothing to divide by"
    assert found[MISSING.label].error == "needs data: give --data-dir"
    assert [label for label, what in told.lines if what == "starts"] == ["a", "c", MISSING.label, "b"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_interrupt_ends_the_workers_which_clean_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    jobs = [draft("tests.reproduce.paper.test_jobs:interrupt", "a"), MISSING]
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, tmp_path / "cache", data, 1, Told())
    assert not multiprocessing.active_children()
    assert not list(data.iterdir())
