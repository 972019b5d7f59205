"""Durable files: at every point where a disk fills up or a process is killed, the old is there or the new, whole."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from dordis import durable_files
from dordis.durable_files import PRIVATE, AppendOnlyFile, lock_directory

ROOT, SRC = Path(__file__).parents[2], Path(durable_files.__file__).parents[1]
OLD, NEW = b"old\n", b"new line\n"
CALLS = ("open", "write", "fsync", "replace", "link", "unlink", "ftruncate")
"""What changes a disk, as far as `durable` asks for it."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@contextmanager
def no_room():
    """Let the kernel write a part of a new line and no more, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(OLD) + 2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_room_found_late():
    """Let everything be written, and fail when it is to be on the disk: file systems may look for room only then."""

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        yield


def append(path, line):
    with AppendOnlyFile(path, PRIVATE).locked() as file:
        file.append(line)


WRITERS = {
    "create": durable_files.write_new,
    "replace": durable_files.write_atomically,
    "append": append,
    "mend": durable_files.repair_lines,
}


def stopped_before(call, writer, path):
    """Write in another process, which is killed before a call that changes the disk; tell whether it was."""
    code = (
        "import os, pathlib, sys\n"
        "from dordis import durable_files\n"
        "from tests.test_durable_files import CALLS, NEW, WRITERS\n"
        "left = int(sys.argv[1])\n"
        "def counted(call):\n"
        "    def run(*arguments, **options):\n"
        "        global left\n"
        "        if left == 0: os.kill(os.getpid(), 9)\n"
        "        left -= 1\n"
        "        return call(*arguments, **options)\n"
        "    return run\n"
        "for name in CALLS: setattr(os, name, counted(getattr(os, name)))\n"
        "WRITERS[sys.argv[2]](pathlib.Path(sys.argv[3]), NEW)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(call), writer, str(path)], cwd=ROOT, check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("writer", "before", "after"),
    [
        ("create", None, NEW),
        ("replace", None, NEW),
        ("replace", OLD, NEW),
        ("append", None, NEW),
        ("append", OLD, OLD + NEW),
        ("mend", OLD + b"cut", OLD + NEW),
    ],
)
def test_a_process_killed_between_any_two_calls_leaves_the_old_or_the_new(writer, before, after, tmp_path):
    call = 0
    while True:
        path = tmp_path / str(call) / "file"
        path.parent.mkdir()
        if before is not None:
            path.write_bytes(before)
        killed = stopped_before(call, writer, path)
        found = path.read_bytes() if path.exists() else None
        if not killed:
            break
        assert found in (before, after, before or b"")  # an append may have made its file, and no line yet
        durable_files.remove_drafts(path)
        assert {child.name for child in path.parent.iterdir()} <= {"file"}
        call += 1
    assert found == after
    assert call >= 3  # open, write or name, sync


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("full", [no_room, no_room_found_late])
def test_a_full_disk_changes_nothing(writer, full, path):
    if writer != "create":
        path.write_bytes(OLD)
    with full(), pytest.raises(OSError) as refused:
        WRITERS[writer](path, NEW)
    assert refused.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert refused.value.filename == str(path)
    assert list(path.parent.iterdir()) == ([] if writer == "create" else [path])
    if writer != "create":
        assert path.read_bytes() == OLD
    path.unlink(missing_ok=True)
    WRITERS[writer](path, NEW)
    assert path.read_bytes() == NEW


def test_a_created_file_is_private_and_never_overwritten(path):
    durable_files.write_new(path, OLD)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        durable_files.write_new(path, NEW)
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path]


def test_of_many_who_create_one_file_one_succeeds(path):
    begin, made = threading.Barrier(8), []

    def attempt(data):
        begin.wait()
        try:
            durable_files.write_new(path, data)
        except FileExistsError:
            return
        made.append(data)

    threads = [threading.Thread(target=attempt, args=(bytes([65 + i]) * 1000,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [path.read_bytes()]


def test_a_replaced_file_is_as_public_as_any_other(path):
    path.with_name("other").write_bytes(OLD)
    durable_files.write_atomically(path, NEW)
    assert path.stat().st_mode == path.with_name("other").stat().st_mode


@pytest.mark.parametrize("writer", ["create", "replace", "append"])
def test_the_data_is_on_the_disk_before_its_name_and_the_name_before_the_writer_returns(writer, path, monkeypatch):
    synced = []
    fsync = os.fsync

    def note(descriptor):
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")) == path.parent, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    WRITERS[writer](path, NEW)
    if writer == "append":
        assert synced == [(True, True), (False, True)]  # the name of the empty file, then its line
    else:
        assert synced == [(False, False), (True, True)]


def test_a_file_of_lines_is_made_only_if_asked_for(path):
    with pytest.raises(FileNotFoundError), AppendOnlyFile(path).locked():
        pass
    with pytest.raises(FileNotFoundError):
        AppendOnlyFile(path).read()
    append(path, NEW)
    assert path.stat().st_mode & 0o777 == 0o600
    assert AppendOnlyFile(path).read() == NEW


def test_lines_are_read_as_often_as_one_likes(path):
    for line in (OLD, NEW):
        append(path, line)
    with AppendOnlyFile(path).locked() as file:
        assert (file.read(), file.read()) == (OLD + NEW, OLD + NEW)


def test_who_holds_the_lock_is_alone(path):
    lines, inside, most = AppendOnlyFile(path, PRIVATE), 0, 0

    def add():
        nonlocal inside, most
        for _ in range(20):
            with lines.locked() as file:
                inside += 1
                most = max(most, inside)
                file.append(b"%d\n" % len(file.read().splitlines()))
                inside -= 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert path.read_bytes() == b"".join(b"%d\n" % i for i in range(80))


@pytest.mark.parametrize("cut", [b"", b"x", b"half a line", NEW[:-1]])
def test_a_line_without_its_end_is_not_read_and_is_mended(path, cut):
    path.write_bytes(OLD + cut)
    assert durable_files.read_lines_with_last(path, b"") == [OLD]
    durable_files.repair_lines(path, NEW)
    assert durable_files.read_lines_with_last(path, b"") == [OLD, NEW]
    durable_files.repair_lines(path, NEW)
    assert path.read_bytes() == OLD + NEW


def test_no_file_has_no_lines_and_is_not_made_by_mending(path):
    assert durable_files.read_lines_with_last(path, b"") == []
    durable_files.repair_lines(path, b"")
    assert not path.exists()


def test_no_other_module_writes_durably():
    homes = {file.name for file in SRC.rglob("*.py") if "fsync(" in file.read_text(encoding="utf-8")}
    assert homes == {"durable_files.py"}


def test_a_directory_has_one_process_at_a_time_and_the_other_is_told_which(tmp_path):
    held = lock_directory(tmp_path)
    code = (
        "import sys, pathlib; from dordis.durable_files import lock_directory; "
        "lock_directory(pathlib.Path(sys.argv[1]))"
    )
    other = [sys.executable, "-c", code, str(tmp_path)]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert f"another process is running it (pid {os.getpid()})" in refused.stderr
    os.close(held)
    assert subprocess.run(other, capture_output=True, check=False).returncode == 0
