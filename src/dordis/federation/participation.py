"""How often a client has taken part: counted over all its runs and servers, before anything leaves, never taken back.

The count is what the owner's cap rests on, so it trusts nobody else: not the server's run ids, not its ledger.  A
copy of the file from an earlier day forgets what came since; keep it out of backups that are restored.
"""

import hashlib
import re
from pathlib import Path
from typing import Protocol

from dordis.errors import InputError, ParametersRefused, ParticipationRefused
from dordis.federation.beacon import check_index, check_run_id
from dordis.federation.durable import PRIVATE, FileLines

Attendance = tuple[bytes, int]
"""A run id and the index of a round."""
Rounds = dict[Attendance, bytes]
"""The rounds taken part in, each with the machine that did: 32 bytes that no other machine has."""

ANY_MACHINE = bytes(32)

_LINE = re.compile(rb"([0-9a-f]{64}) (0|[1-9][0-9]{0,19}) ([0-9a-f]{64}) ([0-9a-f]{64})\n")
_START = hashlib.sha256(b"dordis/v1/participations").digest()


class Participation(Protocol):
    """A client's own count; one round counts once, however often it is reserved."""

    def count(self) -> int:
        """Return the number of rounds taken part in."""
        ...

    def reserve(self, run: bytes, index: int, machine: bytes = ANY_MACHINE, cap: int | None = None) -> None:
        """Count a round before its first upload leaves; beyond a cap raise `ParticipationRefused`.

        A round is for one machine: another one that asks for the same round is refused too, since it would upload a
        second time and count once.
        """
        ...


class MemoryParticipation:
    """A count that lasts as long as the process: for simulations and tests.

    >>> mine = MemoryParticipation(cap=2)
    >>> mine.reserve(bytes(32), 0)
    >>> mine.count()
    1
    """

    def __init__(self, cap: int | None = None) -> None:
        self._cap = cap
        self._rounds: Rounds = {}

    def count(self) -> int:
        """Return the number of rounds taken part in."""
        return len(self._rounds)

    def reserve(self, run: bytes, index: int, machine: bytes = ANY_MACHINE, cap: int | None = None) -> None:
        """Count a round; beyond a cap, or for a second machine, raise `ParticipationRefused`."""
        _check_round(run, index, machine)
        if (run, index) not in self._rounds:
            _check_caps(len(self._rounds), self._cap, cap)
            self._rounds[run, index] = machine
        check_machine(self._rounds[run, index], machine)


class FileParticipation:
    """A count in a file that is only ever appended to, one line a round; processes and threads may share it.

    Every line ends with a hash of itself and of all lines before, so that one which was altered, moved or cut shows;
    then nothing is counted or allowed any more until the owner has put the file right.  A last line without its end
    was being written when the process was stopped: nothing was uploaded on it, and it does not count.
    """

    def __init__(self, path: Path, cap: int | None = None) -> None:
        self._lines, self._cap = FileLines(path, PRIVATE), cap

    def count(self) -> int:
        """Return the number of rounds taken part in."""
        with self._lines.locked() as file:
            return len(check_lines(_whole(file.read()))[0])

    def reserve(self, run: bytes, index: int, machine: bytes = ANY_MACHINE, cap: int | None = None) -> None:
        """Count a round, durably when this returns; beyond a cap, or for a second machine, raise.

        If the process stops anywhere in between, the round is counted or nothing was returned.
        """
        _check_round(run, index, machine)
        with self._lines.locked() as file:
            data = file.read()
            lines = _whole(data)
            rounds, last = check_lines(lines)
            if (run, index) in rounds:
                check_machine(rounds[run, index], machine)
                file.sync()
            else:
                _check_caps(len(rounds), self._cap, cap)
                if not data.endswith(b"\n"):
                    file.cut(sum(map(len, lines)))
                file.append(_line(run, index, machine, last))


def check_cap(count: int, cap: int | None) -> None:
    """There is a participation left."""
    if cap is not None and count >= cap:
        raise ParticipationRefused(count, cap)


def _check_caps(count: int, *caps: int | None) -> None:
    """There is a participation left under every cap."""
    for cap in caps:
        check_cap(count, cap)


def check_machine(counted: bytes, machine: bytes) -> None:
    """A round was counted for the machine that asks: a client that lost its state does not rejoin."""
    if counted != machine:
        raise ParametersRefused("this round was counted for another machine of the same client: take the next index")


def check_lines(lines: list[bytes]) -> tuple[Rounds, bytes]:
    """Return the rounds and the last hash of a file whose every line is as it was written."""
    rounds: Rounds = {}
    last = _START
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        fields = (bytes.fromhex(match[1].decode()), int(match[2]), bytes.fromhex(match[3].decode())) if match else None
        if fields is None or _line(*fields, last) != line:
            raise InputError(f"line {number} of the participations was altered or cut: put the file right first")
        run, index, machine = fields
        rounds[run, index] = machine
        last = bytes.fromhex(line[-65:-1].decode())
    return rounds, last


def _whole(data: bytes) -> list[bytes]:
    """Return the lines that have their end."""
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def _line(run: bytes, index: int, machine: bytes, last: bytes) -> bytes:
    text = b"%b %d %b" % (run.hex().encode(), index, machine.hex().encode())
    return b"%b %b\n" % (text, hashlib.sha256(last + text).hexdigest().encode())


def _check_round(run: bytes, index: int, machine: bytes) -> None:
    check_run_id(run)
    check_index(index)
    if len(machine) != len(ANY_MACHINE):
        raise InputError(f"a machine is named by {len(ANY_MACHINE)} bytes, not {len(machine)}")
