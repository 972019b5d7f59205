"""Run jobs side by side and cache their results, so that the same command continues an interrupted run."""

import hashlib
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dordis.durable_files import write_atomically
from dordis.errors import DordisError
from reproduce.paper import Job

KINDS = {
    "training": "reproduce.paper.training:run_training",
    "traffic": "reproduce.paper.table_3_traffic:run_traffic",
    "round-times": "reproduce.paper.figures_2_10_round_times:run_round_times",
    "shares": "reproduce.paper.figures_2_10_round_times:run_share_times",
    "cluster": "reproduce.paper.figures_2_10_measured:run_cluster",
    "client-training": "reproduce.paper.figures_2_10_measured:run_client_training",
}
"""Functions by kind of job: they take arguments and data directory, and return plain data.  A kind that is not in this
table is a `module:function` itself."""


@dataclass(frozen=True)
class Finished:
    """The result of a job, or the error that ended it, and the seconds that it took."""

    result: Any
    error: str
    seconds: float


class Progress:
    """An observer of jobs that ignores their starts and ends; subclasses report them."""

    def start(self, job: Job) -> None:
        """Take note of a job that starts."""

    def end(self, job: Job, finished: Finished) -> None:
        """Take note of a job's end and result."""


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
        result = pkgutil.resolve_name(KINDS.get(kind, kind))(arguments, Path(data_dir) if data_dir else None)
    except DordisError as error:
        return Finished(None, str(error), time.perf_counter() - started)
    return Finished(result, "", time.perf_counter() - started)


def run_jobs(
    jobs: Iterable[Job], folder: Path, data_dir: Path | None, workers: int, progress: Progress
) -> dict[str, Finished]:
    """Return the results of all jobs; run jobs without a cached result, `workers` at a time, jobs that run alone last.

    A job that fails has an error instead of a result, and the others go on.  An interrupt ends all workers and is
    raised again; the results of finished jobs are in the cache.
    """
    wanted = {job.label: job for job in jobs}
    found = read_cached(folder, wanted.values())
    missing = [job for label, job in wanted.items() if label not in found]
    if not missing:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when a worker starts: every worker has one core
    given = str(data_dir) if data_dir else None
    for alone, count in ((False, workers), (True, 1)):
        queue = deque(job for job in missing if job.alone is alone)
        while queue:  # once more for each worker that died
            _run_queue(queue, count, given, folder, progress, found)
    return found


def _run_queue(
    queue: deque[Job],
    workers: int,
    data_dir: str | None,
    folder: Path,
    progress: Progress,
    found: dict[str, Finished],
) -> None:
    """Run queued jobs until none is left or a worker dies; a job that a dying worker ran has failed."""
    running: dict[Future[Finished], Job] = {}
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=prepare_worker)
    is_broken = False
    try:
        while running or (queue and not is_broken):
            while queue and len(running) < workers and not is_broken:
                job = queue.popleft()
                progress.start(job)
                running[pool.submit(run_job, job.kind, dict(job.arguments), data_dir)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, failure = running.pop(future), future.exception()
                is_broken = is_broken or isinstance(failure, BrokenProcessPool)
                finished = (
                    future.result() if failure is None else Finished(None, f"{type(failure).__name__}: {failure}", 0.0)
                )
                found[job.label] = finished
                if not finished.error:
                    text = json.dumps({"label": job.label, "seconds": finished.seconds, "result": finished.result})
                    write_atomically(cache_path(folder, job), text.encode())
                progress.end(job, finished)
    except KeyboardInterrupt:
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def prepare_worker() -> None:
    """Leave Ctrl-C to the process that started this worker, which ends it by SIGTERM; its job then cleans up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
