"""A journal on disk: what was answered stays answered, and what was left is left, wherever the process is killed."""

import itertools
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from dordis.errors import Aborted, InputError, UnexpectedRequest
from dordis.owner.journal import FileJournals
from dordis.owner.participation import FileParticipation
from tests.runs.cohorts import RUN
from tests.simulated_kills import CALLS, Life
from tests.test_protocol import First, Fourth, Hello, Ready, Toy

ROUND, NEXT = RUN + bytes(8), RUN + bytes(7) + b"\1"
SECRET = b"a secret that nobody else may read"


class Event(msgspec.Struct, frozen=True):
    number: int


@pytest.fixture
def journals(tmp_path):
    return FileJournals(tmp_path / "journals")


def answers(journal, *keys, reply=b"reply"):
    return [journal.claim(key, b"digest", lambda key=key: (SECRET + key.encode(), reply)) for key in keys]


def never():
    raise AssertionError("it was answered before")


def stored(journal, key):
    """Return the reply stored under a key, or None."""
    try:
        return journal.claim(key, b"digest", never)
    except AssertionError:
        return None


def files(journals):
    return {path.suffix: path for path in journals.directory.iterdir()}


# What it keeps


def test_an_answer_is_given_again_after_a_restart_and_another_request_is_refused(journals):
    journal = journals(ROUND)
    answers(journal, "a", "b")
    journal.note(Event(1))
    del journal
    again = journals(ROUND)
    assert [again.claim(key, b"digest", never) for key in "ab"] == [b"reply"] * 2
    assert again.since(0) == [SECRET + b"a", SECRET + b"b"]
    assert again.since(1) == [SECRET + b"b"]
    assert again.events(Event) == [Event(1)]
    with pytest.raises(UnexpectedRequest):
        again.claim("a", b"another digest", never)


def test_nothing_is_stored_of_an_answer_that_fails(journals):
    journal = journals(ROUND)
    with pytest.raises(AssertionError):
        journal.claim("a", b"digest", never)
    assert answers(journal, "a") == [b"reply"]


def test_the_files_are_the_owners_and_cannot_be_read_without_the_key(journals):
    journal = journals(ROUND)
    answers(journal, "a", reply=SECRET)
    journal.note(Event(1))
    assert journals.directory.stat().st_mode & 0o777 == 0o700
    assert {suffix: path.stat().st_mode & 0o777 for suffix, path in files(journals).items()} == {
        ".journal": 0o600,
        ".key": 0o600,
    }
    assert SECRET not in files(journals)[".journal"].read_bytes()
    assert SECRET.decode() not in repr(journal) + str(journals)


def test_leaving_destroys_the_key_and_refuses_the_round_for_ever(journals):
    journal = journals(ROUND)
    answers(journal, "a")
    with (journals.directory / f"{ROUND.hex()}.key").open("rb") as same_file:
        journal.close()
        assert not any(same_file.read())  # erased in place, not replaced
    journal.close()
    assert set(files(journals)) == {".key"}
    assert journals.unfinished() == ()
    for refuses in (lambda: answers(journal, "a"), lambda: journal.note(Event(1)), lambda: journals(ROUND)):
        with pytest.raises(Aborted, match="left the round"):
            refuses()
    assert journal.since(0) == journal.events(Event) == []


def test_one_round_is_under_way_at_a_time(journals):
    answers(journals(ROUND), "a")
    assert journals.unfinished() == (ROUND,)
    answers(journals(NEXT), "a")
    assert journals.unfinished() == (NEXT,)
    with pytest.raises(Aborted):
        journals(ROUND)


def test_rounds_that_were_left_are_one_record_and_are_refused_for_ever(journals):
    for index in range(20):
        answers(journals(RUN + index.to_bytes(8, "big")), "a")
    assert sorted(path.suffix for path in journals.directory.iterdir()) == ["", ".journal", ".key"]
    for index in range(19):
        with pytest.raises(Aborted, match="left the round"):
            journals(RUN + index.to_bytes(8, "big"))
    other = bytes(reversed(RUN))
    answers(journals(other + bytes(8)), "a")  # another run counts for itself
    assert journals.unfinished() == (other + bytes(8),)
    with pytest.raises(Aborted, match="left the round"):
        journals(RUN + (19).to_bytes(8, "big"))


def test_a_kill_at_any_call_of_recording_forgets_no_round(tmp_path):
    for calls in itertools.count():
        journals, life = fresh(tmp_path), Life(calls)
        journals(ROUND).close()
        with life.led():
            journals(NEXT)
        with pytest.raises(Aborted, match="left the round"):
            journals(ROUND)
        if not life.dead:
            break
    assert calls > 4


def test_a_damaged_record_is_not_taken_for_an_empty_one(journals):
    answers(journals(ROUND), "a")
    answers(journals(NEXT), "a")
    (journals.directory / "left").write_bytes(b"{")
    with pytest.raises(InputError, match="damaged"):
        journals(NEXT)


def test_two_processes_do_not_have_one_journal(journals):
    journal = journals(ROUND)
    for other in (ROUND, NEXT):
        with pytest.raises(InputError, match="another process"):
            journals(other)
    assert answers(journal, "a") == [b"reply"]


DAMAGED = {
    "a byte of a record": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "a byte of the last": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a record less": lambda data: data[8 + int.from_bytes(data[:8], "big") :],
    "an empty record": lambda data: data + bytes(8),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_journal_answers_nothing_and_does_not_keep_the_client_out_of_other_rounds(journals, damage):
    answers(journals(ROUND), "a", "b", "c")
    path = files(journals)[".journal"]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Aborted, match="damaged"):
        journals(ROUND)
    assert answers(journals(NEXT), "a") == [b"reply"]


def test_a_journal_that_is_lost_is_not_begun_again(journals):
    answers(journals(ROUND), "a")
    files(journals)[".journal"].unlink()
    with pytest.raises(Aborted, match="lost"):
        journals(ROUND)


def test_a_record_of_another_round_is_none(journals):
    answers(journals(ROUND), "a")
    key, journal = (path.read_bytes() for _, path in sorted(files(journals).items(), reverse=True))
    other = FileJournals(journals.directory.with_name("other"))
    answers(other(NEXT), "a")
    files(other)[".key"].write_bytes(key)
    files(other)[".journal"].write_bytes(journal)
    with pytest.raises(Aborted, match="damaged"):
        other(NEXT)


def test_a_full_disk_answers_nothing_and_leaves_no_half_record(journals, monkeypatch):
    journal = journals(ROUND)
    answers(journal, "a")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(InputError, match="cannot be written: no room"):
            answers(journal, "b")
    assert answers(journal, "b", reply=b"later") == [b"later"]
    del journal
    assert answers(journals(ROUND), "a", "b") == [b"reply", b"later"]


# Kills


def fresh(tmp_path):
    """Return journals in a new directory."""
    return FileJournals(tmp_path / f"journals {len(list(tmp_path.iterdir()))}")


def test_a_kill_at_any_call_of_a_claim_leaves_it_whole_or_absent(tmp_path):
    outcomes = set()
    for calls in itertools.count():
        journals, life = fresh(tmp_path), Life(calls)
        journal = journals(ROUND)
        answers(journal, "a", "b")
        with life.led():
            answers(journal, "c")
        del journal
        again = journals(ROUND)
        assert [stored(again, key) for key in "ab"] == [b"reply"] * 2
        found = stored(again, "c")
        outcomes.add((life.dead, found))
        assert found in (None, b"reply")
        assert answers(again, "c", "d", reply=found or b"new") == [found or b"new"] * 2
        del again
        assert answers(journals(ROUND), "a", "b", "d") == [b"reply", b"reply", found or b"new"]
        if not life.dead:
            break
    assert outcomes == {(True, None), (True, b"reply"), (False, b"reply")}
    assert calls == 2  # write, fsync


def test_a_kill_at_any_call_of_opening_a_round_leaves_it_to_be_opened(tmp_path):
    for calls in itertools.count():
        journals, life = fresh(tmp_path), Life(calls)
        with life.led():
            journals(ROUND)
        assert answers(journals(ROUND), "a") == [b"reply"]
        assert set(files(journals)) == {".key", ".journal"}
        if not life.dead:
            break
    assert calls > 8  # two files, each written under another name, synced, linked, unlinked, and its name synced


def test_a_kill_at_any_call_of_leaving_leaves_everything_or_nothing(tmp_path):
    outcomes = []
    for calls in itertools.count():
        journals, life = fresh(tmp_path), Life(calls)
        journal = journals(ROUND)
        answers(journal, "a")
        with life.led():
            journal.close()
        del journal
        try:
            outcomes.append(stored(journals(ROUND), "a"))
        except Aborted:
            outcomes.append(None)
            assert not any(files(journals)[".key"].read_bytes())
        answers(journals(NEXT), "a")  # whatever was left undone is done by the next round
        assert not (journals.directory / f"{ROUND.hex()}.key").exists()
        assert not (journals.directory / f"{ROUND.hex()}.journal").exists()
        if not life.dead:
            break
    assert sorted(outcomes, key=bool, reverse=True) == outcomes
    assert set(outcomes) == {b"reply", None}


def test_a_kill_at_any_call_of_a_participation_leaves_it_whole_or_absent(tmp_path):
    counts = set()
    for calls in itertools.count():
        path, life = tmp_path / str(calls), Life(calls)
        FileParticipation(path).reserve(RUN, 0)
        with life.led():
            FileParticipation(path).reserve(RUN, 1)
        counts.add(FileParticipation(path).count())
        FileParticipation(path).reserve(RUN, 1)
        FileParticipation(path).reserve(RUN, 2)
        assert FileParticipation(path).count() == 3
        if not life.dead:
            break
    assert counts == {1, 2}
    assert calls == 3  # open, write, fsync


def killed_in_a_child(calls, action):
    """Run an action in another process that kills itself before a call that changes the disk; tell whether it did."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = calls

    def counted(function):
        def call(*arguments, **options):
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    try:
        action()
    finally:
        os._exit(0)


def test_kill_9_at_any_call_of_a_first_claim_leaves_it_whole_or_absent(tmp_path):
    found = []
    for calls in itertools.count():
        journals = fresh(tmp_path)
        dead = killed_in_a_child(calls, lambda journals=journals: answers(journals(ROUND), "a"))
        found.append(stored(journals(ROUND), "a"))
        if not dead:
            break
    assert found == [None] * (len(found) - 2) + [b"reply"] * 2  # before the fsync it was written, and after


# The machine


def begun(journals, *requests):
    toy = Toy(journals(ROUND))
    return [toy.handle(request) for request in requests]


def test_a_client_with_its_journal_and_nothing_else_answers_what_was_answered(journals):
    requests = Hello(), Ready(), First(0), First(2), Fourth(0)
    told = begun(journals, *requests)
    again = Toy(journals(ROUND))
    assert [again.handle(request) for request in requests[::-1]] == told[::-1]
    assert again.calls == []
    assert again.state.secret == "sssss"  # noqa: S105
    again.handle(Fourth(2))


@pytest.mark.parametrize("altered", [Hello("you"), First(0, "other")])
def test_a_client_with_its_journal_and_nothing_else_refuses_another_request(journals, altered):
    begun(journals, Hello(), Ready(), First(0))
    toy = Toy(journals(ROUND))
    with pytest.raises(UnexpectedRequest):
        toy.handle(altered)
    with pytest.raises(Aborted):
        journals(ROUND)


# What the kernel sees

TRACED = """
import os, pathlib, sys
from tests.runs.test_restore import member_in
from tests.rounds.parties import agreed, course
member = member_in(pathlib.Path(sys.argv[1]))
os.write(1, b"begin")
for request in course(agreed(index=3, chunks=2)):
    member.handle(request)
    os.write(1, b"reply")
"""


@pytest.mark.slow
def test_the_kernel_has_synced_every_write_before_a_reply_leaves(tmp_path):
    """Trace the system calls of a client in a whole round, with strace."""
    trace, home = tmp_path / "trace", tmp_path / "client"
    calls = "trace=openat,write,pwrite64,ftruncate,fsync,link,rename,unlink"
    command = ["strace", "-f", "-y", "-e", calls, "-o", str(trace), sys.executable, "-c", TRACED, str(home)]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        pytest.skip("strace is not installed")
    dirty, synced, replies = set(), 0, []
    for line in trace.read_text(errors="replace").splitlines():
        call, _, rest = line.partition(" ")[2].strip().partition("(")
        place = rest[rest.find("<") + 1 : rest.find(">")]
        if call == "write" and rest.startswith("1<"):
            replies.append((synced, frozenset(dirty)))
            synced = 0
        elif not place.startswith(str(home)):
            continue
        elif call in ("write", "pwrite64", "ftruncate"):
            dirty.add(place)
        elif call == "fsync":
            dirty.discard(place)
            synced += 1
    assert len(replies) >= 10
    assert not any(dirty for _, dirty in replies)
    assert [count > 0 for count, _ in replies[1:]] == [True] * (len(replies) - 1)
