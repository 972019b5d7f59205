"""Jobs: what is cached is not run again, and errors are not cached."""

import json
from pathlib import Path

import pytest

from reproduce.paper import Job
from reproduce.paper.jobs import cache_path, read_cached, run_job, run_jobs

MISSING = Job("training", {"preset": "mnist-writers", "keys": [], "metric": "accuracy", "trace": 0}, "needs data")


def test_the_cache_depends_on_kind_and_arguments(tmp_path: Path) -> None:
    paths = {cache_path(tmp_path, Job(kind, {"n": n}, "x")) for kind in ("a", "b") for n in (1, 2)}
    assert len(paths) == 4


def test_a_cached_result_is_not_run_again(tmp_path: Path) -> None:
    job = Job("no such kind", {}, "done before")
    cache_path(tmp_path, job).write_text(json.dumps({"label": job.label, "seconds": 2.0, "result": [1]}))
    found = run_jobs([job], tmp_path, None, 1, pytest.fail)
    assert (found[job.label].result, found[job.label].seconds) == ([1], 2.0)


def test_a_job_without_its_data_says_so() -> None:
    finished = run_job(MISSING.kind, MISSING.arguments, None)
    assert (finished.result, finished.error) == (None, "needs data: give --data-dir")


@pytest.mark.slow
def test_jobs_run_in_processes_of_their_own_and_errors_are_not_cached(tmp_path: Path) -> None:
    said: list[str] = []
    found = run_jobs([MISSING], tmp_path, None, 1, said.append)
    assert found[MISSING.label].error == "needs data: give --data-dir"
    assert read_cached(tmp_path, [MISSING]) == {}
    assert len(said) == 1
