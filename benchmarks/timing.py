"""Time work on a busy machine: many short repetitions, sides taken in turn, the best of each kept.

Other load only ever adds time, so the best repetition is the closest to what the work itself costs.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

Work = Callable[[], object]
Clock = Callable[[], float]


def repetitions(full: int, quick: bool) -> int:
    """Return how often to repeat: a twentieth for a smoke test."""
    return max(2, full // 20) if quick else full


def side_by_side(works: list[Work], count: int, clock: Clock = time.thread_time) -> list[float]:
    """Run the works in turn, `count` times over, and return the best seconds of each; a first turn is not counted."""
    for work in works:
        work()
    best = [float("inf")] * len(works)
    for _ in range(count):
        for place, work in enumerate(works):
            start = clock()
            work()
            best[place] = min(best[place], clock() - start)
    return best


def best(work: Work, count: int) -> float:
    """Return the best CPU seconds of the calling thread."""
    return side_by_side([work], count)[0]


def best_wall(work: Work, count: int) -> float:
    """Return the best seconds on the clock, for work done by other threads or processes."""
    return side_by_side([work], count, time.perf_counter)[0]


def family_time() -> float:
    """Return the processor seconds of this process and its living descendants, by what Linux tells; 0 elsewhere."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended just now
            continue
        pid = int(path.parent.name)
        parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(spent.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


def ratio(reference: Work, subject: Work, count: int, clock: Clock = time.thread_time) -> float:
    """Return how many times the subject fits into the reference's time, best against best."""
    reference_s, subject_s = side_by_side([reference, subject], count, clock)
    return reference_s / subject_s
