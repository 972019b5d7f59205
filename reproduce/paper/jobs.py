"""Run jobs two at a time and cache their results, so that a run that was interrupted resumes."""

import hashlib
import json
import os
import pkgutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dordis.durable_files import write_atomically
from dordis.errors import DordisError
from reproduce.paper import Job

KINDS = {
    "training": "reproduce.paper.training:run_training",
    "traffic": "reproduce.paper.traffic:run_traffic",
    "round-times": "reproduce.paper.times:run_round_times",
    "shares": "reproduce.paper.times:run_share_times",
}
"""Functions of jobs, by kind: they take the arguments and the data directory, and return plain data."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Finished:
    """The result of a job, or the error that ended it, and the seconds that it took."""

    result: Any
    error: str
    seconds: float


def cache_path(folder: Path, job: Job) -> Path:
    """Return the file of a job's result: its label, and a digest of its kind and arguments."""
    text = json.dumps([job.kind, job.arguments], sort_keys=True)
    name = "".join(letter if letter.isalnum() or letter == "." else "-" for letter in job.label.lower())
    return folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"


def read_cached(folder: Path, jobs: Iterable[Job]) -> dict[str, Finished]:
    """Return the cached results by label."""
    found = {}
    for job in jobs:
        path = cache_path(folder, job)
        if path.is_file():
            stored = json.loads(path.read_text(encoding="utf-8"))
            found[job.label] = Finished(stored["result"], "", stored["seconds"])
    return found


def run_job(kind: str, arguments: Mapping[str, Any], data_dir: str | None) -> Finished:
    """Run a job in this process; an error of dordis becomes part of the result."""
    started = time.perf_counter()
    try:
        result = pkgutil.resolve_name(KINDS[kind])(arguments, Path(data_dir) if data_dir else None)
    except DordisError as error:
        return Finished(None, str(error), time.perf_counter() - started)
    return Finished(result, "", time.perf_counter() - started)


def run_jobs(
    jobs: Iterable[Job], folder: Path, data_dir: Path | None, workers: int, report: Progress
) -> dict[str, Finished]:
    """Return the results of all jobs; those without a cached one are run, `workers` at a time."""
    wanted = {job.label: job for job in jobs}
    found = read_cached(folder, wanted.values())
    missing = [job for label, job in wanted.items() if label not in found]
    if not missing:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when a worker starts: every worker has one core
    given = str(data_dir) if data_dir else None
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=None) as pool:
        running: dict[Future[Finished], Job] = {
            pool.submit(run_job, j.kind, dict(j.arguments), given): j for j in missing
        }
        for count, future in enumerate(as_completed(running), 1):
            job, finished = running[future], future.result()
            found[job.label] = finished
            if not finished.error:
                text = json.dumps({"label": job.label, "seconds": finished.seconds, "result": finished.result})
                write_atomically(cache_path(folder, job), text.encode())
            report(f"{count} of {len(missing)}: {job.label}, {finished.seconds:.0f} s {finished.error}")
    return found
