"""Whatever ends a run before its time: what was done is kept, and the last line says how to go on."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from dordis.cli.commands.run import catch_signals
from dordis.durable_files import lock_directory
from dordis.records import run_records
from tests.cli.in_process import dordis
from tests.paused_processes import start_paused
from tests.simulation.whole_runs import TOY

BROKEN = """
import errno
from pathlib import Path
from types import SimpleNamespace

from tests.simulation import toys


class Crashing(toys.Server):
    def evaluate(self):
        if self.rounds == 2 and not Path("mended").exists():
            raise RuntimeError("a mistake of the application")
        return super().evaluate()


class Full(toys.Server):
    def state(self):
        if self.rounds == 2 and not Path("mended").exists():
            raise OSError(errno.ENOSPC, "No space left on device", "model.npz")
        return super().state()


class Words(toys.Server):
    def evaluate(self):
        return {"mean": "large"}


class Listed(toys.Server):
    def evaluate(self):
        return [1.0]
"""


def keys(server: str) -> list[str]:
    return [f"-c{key}" for key in (*TOY, f"app.server=broken:{server}", "name=broken")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "broken.py").write_text(BROKEN)
    sys.modules.pop("broken", None)
    return tmp_path


def resumed(folder: Path) -> dict[str, object]:
    """Mend what was broken, and go on."""
    (folder / "mended").touch()
    (path,) = folder.glob("runs/broken/*")
    assert len(run_records.load_run(path).rounds) == 1
    told: dict[str, object] = json.loads(dordis("run", "--resume", path, "--json", cwd=folder).stdout)
    return told


def test_a_crash_of_an_application_keeps_its_traceback_and_ends_with_how_to_go_on(folder):
    with pytest.raises(RuntimeError, match="a mistake of the application") as crash:
        dordis("run", *keys("Crashing"), cwd=folder)
    assert crash.value.__notes__[-1].startswith(f"resume with: dordis run --resume {Path('runs') / 'broken'}")
    assert resumed(folder)["rounds"] == 3


def test_a_full_disk_is_one_line_with_how_to_go_on(folder):
    done = dordis("run", *keys("Full"), cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot write at model.npz: No space left on device; resume with: dordis run --resume runs" in done.stderr
    assert resumed(folder)["rounds"] == 3


@pytest.mark.parametrize(("server", "said"), [("Words", "for 'mean' it is str"), ("Listed", "not list")])
def test_metrics_that_are_no_numbers_are_one_line(folder, server, said):
    done = dordis("run", *keys(server), cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_stops_and_says_how_to_go_on(tmp_path):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "dordis", "run", *(f"-c{key}" for key in TOY)]
    done = subprocess.run(command, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    (path,) = tmp_path.glob("runs/*/*")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        130,
        f"interrupted; resume with: dordis run --resume {path.relative_to(tmp_path)}",
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_is_run_by_one_process_and_termination_ends_it_as_an_interrupt_does(tmp_path):
    given = [f"-c{key}" for key in (*TOY, "app.server=tests.simulation.paused_toys:Server", "name=broken")]
    command = [sys.executable, "-m", "dordis", "run", *given]
    process = start_paused(command, "use_output 1", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (path,) = tmp_path.glob("runs/broken/*")
    second = dordis("run", "--resume", path, cwd=tmp_path)
    assert second.returncode == 2
    assert f"the run at {path} is under way: another process is running it (pid {process.pid})" in second.stderr
    process.send_signal(signal.SIGTERM)
    shown = process.communicate()[0].decode()
    assert process.returncode == 130
    assert "Traceback" not in shown
    assert f"interrupted; resume with: dordis run --resume {path.relative_to(tmp_path)}" in shown
    assert run_records.load_run(path).result.stopped == "interrupted"
    os.close(lock_directory(path))  # what the process held ended with it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_nobody_heard_ends_the_run_after_the_round(number):
    before = signal.getsignal(number)
    with catch_signals() as end_if_asked:
        end_if_asked()
        with suppress(KeyboardInterrupt):  # as Python does in finalisers
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            end_if_asked()
    assert signal.getsignal(number) is before


class Interrupting:
    """An object whose finaliser gets a signal, as any finaliser may."""

    def __init__(self, number):
        self._number = number

    def __del__(self):
        os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_a_finaliser_discards_comes_again_without_a_traceback(number, capfd):
    def wait():
        Interrupting(number)
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt), catch_signals():
        wait()
    assert "Traceback" not in capfd.readouterr().err


def test_other_exceptions_of_finalisers_are_reported(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with catch_signals():
        sys.unraisablehook(SimpleNamespace(exc_value=ValueError()))
    assert len(reported) == 1
    assert sys.unraisablehook == reported.append
