"""Log lines for operators and owners, as text or JSON, with UTC time, level, run and round.

A line that is logged with a run or a round (`extra={"run": ..., "round": ...}`) sets the run or round of all later
lines, until another line sets it again.  A client logs one line about each round (`ClientRoundLog`).
"""

import _thread
import json
import logging
import math
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from aiohttp.http_exceptions import HttpProcessingError

from dordis.network.authentication import explain_tls_error

log = logging.getLogger("dordis.network")

LOG_PAUSE, MOST_FAILURES_LOGGED = 10.0, 20
"""Seconds between two log lines about dropped connections; most failed handshakes that are logged in this time."""
CONTEXT = ("run", "round", "client", "request")
LASTING = ("run", "round")
"""Fields that later lines repeat until a line sets another value."""
SHOWN_RUN = 8
"""Number of hexadecimal digits of a run id in a text line."""


def round_fields(run: bytes, index: int) -> dict[str, Any]:
    """Return the `extra` fields of a log line about a round."""
    return {"run": run.hex(), "round": index}


class LineFormatter(logging.Formatter):
    """Formats a log record as one line of text, or as one JSON object."""

    def __init__(self, as_json: bool = False) -> None:
        super().__init__()
        self._as_json = as_json
        self._lasting: dict[str, Any] = {}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows in further lines or a JSON field, except for malformed HTTP requests."""
        fields = {name: getattr(record, name) for name in CONTEXT if hasattr(record, name)}
        self._lasting.update({name: fields[name] for name in LASTING if name in fields})
        fields = self._lasting | fields
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        message, traceback = escape_control(record.getMessage()), ""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):  # aiohttp logs malformed requests with a traceback
            message += escape_control(f": {error.message}")
        elif record.exc_info:
            traceback = self.formatException(record.exc_info)
        if self._as_json:
            event = {"time": time, "level": record.levelname.lower(), **fields, "event": message}
            return json.dumps(event | ({"traceback": traceback} if traceback else {}))
        shown = "".join(f" {name}={str(value)[:SHOWN_RUN]}" for name, value in fields.items())
        return f"{time} {record.levelname}{shown} {message}" + (f"\n{traceback}" if traceback else "")


def escape_control(text: str) -> str:
    """Return a text with control characters escaped: a text from another machine must not forge lines of the log.

    >>> escape_control("two\\nlines")
    'two\\\\nlines'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def set_up_logging(*, quiet: bool, as_json: bool, stream: TextIO | None = None) -> None:
    """Log to a stream, by default standard error; if `quiet`, only warnings and errors.

    If the stream is standard output and cannot be written any more, the command is interrupted.
    """
    handler = (_OutputHandler if stream is sys.stdout else logging.StreamHandler)(stream or sys.stderr)
    handler.setFormatter(LineFormatter(as_json))
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler], force=True)


class _OutputHandler(logging.StreamHandler[TextIO]):
    """A handler for standard output; if a write fails, it prints why on stderr and acts like Ctrl-C."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), self.stream.fileno())
        sys.stderr.write(f"cannot write to standard output: {error.strerror}\n")
        _thread.interrupt_main()


class ClientRoundLog:
    """Logs one line for each round that a client is invited to: that it took part, or why not."""

    def __init__(self, describe_spending: Callable[[], str] = lambda: "") -> None:
        self._describe_spending = describe_spending
        self._fields: dict[str, Any] = {}
        self._is_logged = True

    def begin(self, run: bytes, index: int) -> None:
        """Record an invitation; an invitation that is repeated after a reconnection is ignored."""
        if self._fields == round_fields(run, index):
            return
        self.end()
        self._fields, self._is_logged = round_fields(run, index), False
        log.debug("invited", extra=self._fields)

    def end(self) -> None:
        """If this client has neither uploaded nor declined in the latest round, log that it did not take part."""
        if not self._is_logged:
            self._is_logged = True
            log.info("invited, did not take part: the server asked for no update", extra=self._fields)

    def take_part(self) -> None:
        """Log that the update of the round was uploaded, with the epsilon spent so far."""
        if not self._is_logged:
            self._is_logged = True
            if log.isEnabledFor(logging.INFO):  # computing epsilon takes milliseconds
                spent = self._describe_spending()
                log.info("invited, took part: the update is uploaded; %s", spent, extra=self._fields)

    def decline(self, reason: object) -> None:
        """Log why the client leaves the round."""
        self._is_logged = True
        log.warning("invited, declined: %s", reason, extra=self._fields)


class HandshakeLog:
    """Logs failed TLS handshakes with address and reason, at most MOST_FAILURES_LOGGED in LOG_PAUSE seconds."""

    def __init__(self) -> None:
        self._since, self._failures = -math.inf, 0

    def fail(self, address: str, error: BaseException, now: float) -> None:
        """Log a failed handshake; beyond MOST_FAILURES_LOGGED, only count it, for a later line with the count."""
        if now - self._since >= LOG_PAUSE:
            if (omitted := self._failures - MOST_FAILURES_LOGGED) > 0:
                log.warning("%d more TLS handshakes failed", omitted)
            self._since, self._failures = now, 0
        self._failures += 1
        if self._failures <= MOST_FAILURES_LOGGED:
            log.warning("refused a connection from %s: %s", address, explain_tls_error(error))
