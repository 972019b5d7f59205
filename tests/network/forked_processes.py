"""A process that forks servers and clients, so that these need not import and compile again.

Each line of its input is a JSON list: the name of a function of `process_roles`, its arguments, and a file for its
output.  It prints a JSON list for each process that it started, and for each that ended, with exit code.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).parents[2]
HANG = 600.0
"""Seconds after which something that never comes is a failure."""
IMPORTED_LATE = (
    "dordis.cli.run_display",
    "dordis.owner.directory",
    "dordis.records.server_status",
    "dordis.report.alert_command",
    "dordis.report.page",
)
"""Modules that commands import when they need them: a child of a long run must not mix them from an edited tree."""
STACKS = signal.SIGUSR1
"""Signal at which a forked process writes the stacks of its threads to its log."""


def main() -> None:
    from dordis.network.deadlines import compile_kernels
    from tests.network import process_roles

    assert process_roles.Total  # imported here, so that no child has to
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    compile_kernels()
    tell("ready")
    noticed, notice = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(notice)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(noticed, selectors.EVENT_READ)
    rest = b""
    while True:
        for key, _ in selector.select():
            if key.fd == noticed:
                os.read(noticed, 4096)
                reap()
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                fork(*json.loads(line))


def tell(*what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        tell("ended", pid, os.waitstatus_to_exitcode(status))


def fork(name: str, arguments: dict[str, Any], log: str) -> None:
    pid = os.fork()
    if pid:
        tell("started", pid)
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for old, new in ((os.open(os.devnull, os.O_RDONLY), 0), (file, 1), (file, 2)):
        os.dup2(old, new)
    faulthandler.register(STACKS)
    code = 1
    try:
        from tests.network import process_roles

        getattr(process_roles, name)(**arguments)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001  whatever it was, the parent's loop is not to go on here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ForkedProcesses:
    """The forking process, as a test controls it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.network.forked_processes"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started: Queue[int] = Queue()
        self._change, self._ready = threading.Condition(), False
        self._codes: dict[int, int | None] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with self._change:
            assert self._change.wait_for(lambda: self._ready, HANG)

    def _read(self) -> None:
        for line in self._process.stdout:
            what, *rest = json.loads(line)
            with self._change:
                match what:
                    case "ready":
                        self._ready = True
                    case "started":
                        self._codes[rest[0]] = None
                        self._started.put(rest[0])
                    case "ended":
                        self._codes[rest[0]] = rest[1]
                self._change.notify_all()

    def start(self, name: str, log: Path, **arguments: Any) -> int:
        """Run a function of `process_roles` in a process of its own; return its id."""
        given = {key: str(value) if isinstance(value, Path) else value for key, value in arguments.items()}
        self._process.stdin.write(json.dumps([name, given, str(log)]).encode() + b"\n")
        self._process.stdin.flush()
        return self._started.get(timeout=HANG)

    def wait(self, pid: int) -> int:
        """Wait for the end of a process; return its exit code."""
        with self._change:
            assert self._change.wait_for(lambda: self._codes[pid] is not None, HANG)
            return self._codes[pid]

    def wait_any(self, *pids: int) -> int:
        """Wait until one of some processes has ended; return which."""
        with self._change:
            assert self._change.wait_for(lambda: any(self._codes[pid] is not None for pid in pids), HANG)
            return next(pid for pid in pids if self._codes[pid] is not None)

    def is_running(self, pid: int) -> bool:
        """Tell whether a process has not ended."""
        with self._change:
            return self._codes[pid] is None

    def kill(self, *pids: int) -> None:
        """Kill processes by SIGKILL, and wait for their end."""
        for pid in pids:
            with self._change:
                if self._codes[pid] is None:
                    with contextlib.suppress(ProcessLookupError):  # it has ended, and its code is on its way
                        os.kill(pid, signal.SIGKILL)
            self.wait(pid)

    def close(self) -> None:
        """Kill the remaining processes."""
        self.kill(*self._codes)
        self._process.stdin.close()
        self._process.wait(HANG)
        self._reader.join(HANG)
        self._process.stdout.close()


if __name__ == "__main__":
    main()
