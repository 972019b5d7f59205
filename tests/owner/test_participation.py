"""A client's count: what was counted stays counted, by whatever the process, the server or another process does."""

import os
import signal
import subprocess
import sys
import threading

import dp_accounting
import pytest

from dordis import durable_files
from dordis.errors import BudgetRefused, InputError, ParametersRefused, ParticipationRefused
from dordis.owner import participation as module
from dordis.owner.directory import ClientDirectory
from dordis.owner.participation import (
    FileParticipation,
    FileTrainings,
    Limits,
    MemoryParticipation,
    MemoryTrainings,
    OwnerBudget,
)
from dordis.owner.policy import Policy
from dordis.protocols.costs import RoundCost
from tests.paused_processes import start_paused
from tests.runs.cohorts import OTHER_RUN, RUN


@pytest.fixture
def path(tmp_path):
    return tmp_path / "participations"


@pytest.fixture(params=["file", "memory"])
def make(request, path):
    if request.param == "memory":
        return MemoryParticipation
    return lambda cap=None: FileParticipation(path, cap)


PREAMBLE = (
    "import os, sys, pathlib; from dordis.errors import ParticipationRefused\n"
    "from dordis.owner.participation import FileParticipation\n"
    "mine = FileParticipation(pathlib.Path(sys.argv[1]), int(sys.argv[2]))\n"
    "write = os.write\n"
    "say = lambda text: write(1, f'{text}\\n'.encode())\n"
)
"""What lines in another process have: `mine`, a count in a file, and `say`, which is heard at once."""


def command(code, *arguments):
    return [sys.executable, "-c", PREAMBLE + code, *map(str, arguments)]


def start(code, *arguments):
    """Run some lines in another process."""
    return subprocess.Popen(command(code, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_rounds_are_counted_once_each(make):
    mine = make()
    assert mine.count() == 0
    for run, index in [(RUN, 0), (RUN, 1), (RUN, 0), (OTHER_RUN, 0), (RUN, 2**64 - 1), (OTHER_RUN, 0)]:
        mine.reserve(run, index)
    assert mine.count() == 4


def test_beyond_the_cap_nothing_is_counted_and_what_was_counted_stays_allowed(make):
    mine = make(cap=2)
    mine.reserve(RUN, 0)
    mine.reserve(RUN, 1)
    with pytest.raises(ParticipationRefused, match="2 times, its owner allows 2") as refused:
        mine.reserve(RUN, 2)
    assert (refused.value.count, refused.value.cap) == (2, 2)
    assert isinstance(refused.value, ParametersRefused)
    assert mine.count() == 2
    mine.reserve(RUN, 1)


def test_the_chance_of_a_failure_is_that_of_every_index_up_to_the_last_of_each_run(make):
    mine, chance = make(), 2.0**-40
    for run, index in [(RUN, 4), (RUN, 2), (OTHER_RUN, 9), (RUN, 4)]:
        mine.reserve(run, index, cost=RoundCost(0.01, 0.0, chance))
    assert mine.spent().failure == 15 * chance
    assert mine.spent({(RUN, 4): RoundCost(0.01, 0.0, chance)}) == mine.spent()
    more = mine.spent({(RUN, 6): RoundCost(0.02, 0.0, 2 * chance)})
    assert more.failure == 24 * chance
    assert more.theta_squared == pytest.approx(0.05)


def test_a_budget_is_kept_at_the_delta_that_failures_leave(make):
    """The theta^2 that a delta allows is dp-accounting's Gaussian at that delta less the chances."""
    budget, chance = OwnerBudget(2.0, 1e-6), 1e-7
    for index, allowed in ((0, 9e-7), (4, 5e-7), (8, 1e-7)):
        noise = dp_accounting.get_sigma_gaussian(2.0, allowed)
        for factor in (0.999, 1.001):
            cost = RoundCost(factor / noise**2, 0.0, chance)
            assert budget.covers(make().spent({(RUN, index): cost})) is (factor < 1)
    with pytest.raises(BudgetRefused, match="random selections of its rounds fail with probability 1e-06"):
        make().reserve(RUN, 9, cost=RoundCost(1e-9, 0.0, chance), limits=Limits(None, budget))


def test_lines_of_rounds_that_cannot_fail_are_as_they_were(path):
    mine = FileParticipation(path)
    mine.reserve(RUN, 0, cost=RoundCost(0.5, 1e-20))
    mine.reserve(RUN, 1, cost=RoundCost(0.5, 1e-20, 2.0**-40))
    assert [len(line.split()) for line in path.read_bytes().splitlines()] == [6, 7]
    assert mine.spent() == RoundCost(1.0, 2e-20, 2 * 2.0**-40)


def test_a_cap_of_zero_allows_nothing(make):
    with pytest.raises(ParticipationRefused):
        make(cap=0).reserve(RUN, 0)


def test_another_run_does_not_hide_participations(make):
    mine = make(cap=3)
    for run in range(3):
        mine.reserve(bytes([run] * 32), 0)
    with pytest.raises(ParticipationRefused):
        mine.reserve(bytes([3] * 32), 0)


def test_the_cap_is_kept_by_one_check(make, monkeypatch):
    monkeypatch.setattr(module, "check_cap", lambda *_: None)
    make(cap=0).reserve(RUN, 0)


@pytest.mark.parametrize(("run", "index"), [(b"", 0), (bytes(31), 0), (bytes(33), 0), (RUN, -1), (RUN, 2**64)])
def test_what_is_not_a_round_is_refused(make, run, index):
    mine = make()
    with pytest.raises(InputError):
        mine.reserve(run, index)
    assert mine.count() == 0


def test_another_process_or_a_restart_goes_on_counting(path):
    FileParticipation(path, 3).reserve(RUN, 0)
    FileParticipation(path, 3).reserve(OTHER_RUN, 0)
    assert FileParticipation(path).count() == 2
    FileParticipation(path, 3).reserve(RUN, 0)
    FileParticipation(path, 3).reserve(RUN, 1)
    with pytest.raises(ParticipationRefused):
        FileParticipation(path, 3).reserve(RUN, 2)


def test_the_file_is_a_line_a_round_and_nobody_elses(path):
    FileParticipation(path).reserve(RUN, 12)
    FileParticipation(path).reserve(OTHER_RUN, 0)
    lines = path.read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [[RUN.hex(), "12"], [OTHER_RUN.hex(), "0"]]
    assert path.stat().st_mode & 0o077 == 0


def test_a_line_is_on_the_disk_before_reserve_returns(path, monkeypatch):
    FileParticipation(path).reserve(RUN, 0)
    steps = []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda *a: (steps.append("write"), write(*a))[1])
    monkeypatch.setattr(os, "fsync", lambda *a: (steps.append("fsync"), fsync(*a))[1])
    FileParticipation(path).reserve(RUN, 1)
    assert steps == ["write", "fsync"]
    steps.clear()
    FileParticipation(path).reserve(RUN, 1)  # whoever wrote the line may have stopped before its fsync
    assert steps == ["fsync"]


def test_the_name_of_a_new_file_is_on_the_disk_before_its_first_line(path, monkeypatch):
    steps = []
    write = os.write
    monkeypatch.setattr(durable_files, "sync_directory", lambda directory: steps.append(directory))
    monkeypatch.setattr(os, "write", lambda *a: (steps.append("write"), write(*a))[1])
    FileParticipation(path).reserve(RUN, 0)
    assert steps == [path.parent, "write"]


def test_a_full_disk_counts_nothing_and_leaves_no_half_line(path, monkeypatch):
    mine = FileParticipation(path)
    mine.reserve(RUN, 0)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(OSError, match="no room"):
            mine.reserve(RUN, 1)
    assert mine.count() == 1
    mine.reserve(RUN, 1)
    assert mine.count() == 2


def lines_of(path, count=4):
    for index in range(count):
        FileParticipation(path).reserve(RUN, index)
    return path.read_bytes().splitlines(keepends=True)


DAMAGED = {
    "a line less": lambda lines: lines[:1] + lines[2:],
    "the first less": lambda lines: lines[1:],
    "exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
    "twice": lambda lines: [*lines, lines[-1]],
    "another run": lambda lines: [lines[0].replace(RUN.hex().encode(), OTHER_RUN.hex().encode()), *lines[1:]],
    "another index": lambda lines: [*lines[:-1], lines[-1].replace(b" 3 ", b" 4 ")],
    "a zero more": lambda lines: [*lines[:-1], lines[-1].replace(b" 3 ", b" 03 ")],
    "an empty line": lambda lines: [*lines, b"\n"],
    "crlf": lambda lines: [line[:-1] + b"\r\n" for line in lines],
    "zeros between": lambda lines: [*lines[:-1], bytes(135), lines[-1]],
}
CUT = {
    "half a line": lambda lines: [*lines[:-1], lines[-1][:40]],
    "no end": lambda lines: [*lines[:-1], lines[-1][:-1]],
    "zeros": lambda lines: [*lines[:-1], bytes(135)],
}
"""What is left of the last line when the process or the machine stops while it is written."""


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_counts_and_allows_nothing(path, damage):
    path.write_bytes(b"".join(damage(lines_of(path))))
    before = path.read_bytes()
    for use in (FileParticipation.count, lambda mine: mine.reserve(RUN, 9), lambda mine: mine.reserve(RUN, 0)):
        with pytest.raises(InputError, match="altered or cut"):
            use(FileParticipation(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", CUT.values(), ids=CUT)
def test_a_line_that_was_not_written_to_its_end_does_not_count_and_is_written_again(path, cut):
    whole = b"".join(lines_of(path))
    path.write_bytes(b"".join(cut(whole.splitlines(keepends=True))))
    mine = FileParticipation(path, cap=4)
    assert mine.count() == 3
    mine.reserve(RUN, 3)
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_any_altered_byte_is_noticed(path):
    whole = b"".join(lines_of(path, 2))
    for place in range(len(whole) - 1):  # a last line without its end was not written
        for byte in {whole[place] ^ 1, whole[place] ^ 32, 10, 13} - {whole[place]}:
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with pytest.raises(InputError, match="altered or cut"):
                FileParticipation(path).count()


def test_kill_9_never_loses_what_was_counted(path):
    """Kill a process before it writes a line, and before the line is on the disk."""
    code = (
        "from tests.paused_processes import pause_before\n"
        "first = int(sys.argv[3])\n"
        "for i in range(first, first + 3): mine.reserve(bytes(32), i); say(i)\n"
        "pause_before(os, 'write'); pause_before(os, 'fsync')\n"
        "mine.reserve(bytes(32), first + 3)\n"
    )
    counted = 0
    for point in ("write", "fsync"):
        process = start_paused(command(code, path, 10**6, counted), point, stdout=subprocess.PIPE)
        process.kill()
        heard = process.communicate()[0].splitlines()
        assert list(map(int, heard)) == list(range(counted, counted + 3))
        counted += 3 if point == "write" else 4  # what was written is counted, and stays so
        assert FileParticipation(path).count() == counted
    assert [int(line.split()[1]) for line in path.read_text().splitlines()] == list(range(counted))


def test_a_crash_between_counting_and_the_upload_still_counts(path):
    process = start("mine.reserve(bytes(32), 0); os.kill(os.getpid(), 9)", path, 1)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert FileParticipation(path).count() == 1
    with pytest.raises(ParticipationRefused):
        FileParticipation(path, 1).reserve(RUN, 1)


@pytest.mark.slow
def test_two_processes_together_stay_within_the_cap(path):
    code = (
        "say('ready'); sys.stdin.readline()\n"
        "try:\n"
        "  for i in range(100): mine.reserve(bytes([int(sys.argv[3])] * 32), i); say(i)\n"
        "except ParticipationRefused: pass\n"
    )
    both = [start(code, path, 60, who) for who in range(2)]
    for process in both:
        assert process.stdout.readline() == b"ready\n"
    for process in both:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    counted = [len(process.communicate()[0].splitlines()) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(counted) == FileParticipation(path).count() == 60


def test_threads_together_stay_within_the_cap(path):
    def attend(who):
        for index in range(20):
            try:
                FileParticipation(path, 30).reserve(bytes([who] * 32), index)
            except ParticipationRefused:
                return

    threads = [threading.Thread(target=attend, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert FileParticipation(path).count() == 30


# Trainings


@pytest.fixture(params=["memory", "file"])
def counts(request, tmp_path):
    """Return what gives the count, again after a restart."""
    kept = MemoryTrainings()
    return lambda: kept if request.param == "memory" else FileTrainings(tmp_path / "trainings")


def test_a_training_beyond_the_bound_is_refused_and_a_participation_begins_anew(counts):
    for participations in (0, 1, 5):
        for _ in range(3):
            counts().begin(participations, most=3)
        for _ in range(2):
            with pytest.raises(ParametersRefused, match=r"line 'trainings'.*trained 3 times"):
                counts().begin(participations, most=3)


def test_without_a_bound_nothing_is_counted(counts):
    for _ in range(20):
        counts().begin(0, most=None)
    counts().begin(0, most=1)


def test_the_count_is_in_the_directory_of_the_client_and_a_damaged_one_refuses(tmp_path):
    ClientDirectory(tmp_path).trainings.begin(2, most=3)
    assert (tmp_path / "trainings").read_text() == "2 1\n"
    (tmp_path / "trainings").write_text("2 x\n")
    with pytest.raises(InputError, match="does not hold two numbers"):
        ClientDirectory(tmp_path).trainings.begin(2, most=3)


def test_a_policy_bounds_trainings_by_default():
    assert Policy().trainings == 10
    with pytest.raises(InputError, match="0 or more"):
        Policy(trainings=-1)
