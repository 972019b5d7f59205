"""What a client asks of a manifest: the run id is its hash, and it says what the client's owner has agreed to.

The manifest names its own date, and the line of the beacon that draws the clients.  A run id that a server made up, or
a manifest with other terms, is refused at log-in, before anything is answered.
"""

import hashlib
import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from dordis.errors import MalformedMessage, ParametersRefused, ProtocolError
from dordis.federation.beacon import FileBeacon
from dordis.federation.manifest import Manifest
from dordis.federation.registry import Registry
from dordis.protocol import ClientId

LARGEST = 1 << 20
"""Bytes of a manifest at most, beside its members; it has about 5,000."""
MEMBER_BYTES = 64
"""Bytes of a member in a manifest at most: its id, and the fingerprint of its keys."""
CLOSE = 1e-9
"""Relative difference of numbers that are the same but for the rounding of another machine."""
FREE = frozenset(
    {
        "created",
        "version",
        "name",
        "beacon",
        "first_line",
        "predecessor",
        "where",
        "words",
        "unit",
        "measured",
        "members",
        "config.name",
        "config.output",
        "config.app.client",
        "config.app.folder",
        "config.app.options",
        "config.performance",
        "config.deployment.host",
        "config.deployment.port",
        "config.deployment.login",
        "config.deployment.balancers",
        "config.deployment.beacon",
        "config.deployment.wait",
        "config.deployment.deadlines",
        "config.deployment.runs_a_day",
        "config.deployment.trainings",
    }
)
"""Fields in which a run may differ from what a client expects: of one machine alone, or compared by other checks."""


def read_manifest(data: bytes, members: int) -> Manifest:
    """Read the manifest of a run with so many members, as `Records` writes it."""
    limit = LARGEST + MEMBER_BYTES * members
    if len(data) > limit:
        raise MalformedMessage(f"the manifest of the run has {len(data)} bytes, more than {limit}")
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"the manifest of the run cannot be read: {_shown(str(error))}") from None


def beacon_of(manifest: Manifest, published: FileBeacon) -> FileBeacon:
    """Return the beacon of a run: it begins at the line that the manifest names, which is later than the manifest."""
    if manifest.first_line is None or manifest.first_line < 0:
        raise ParametersRefused("the manifest of the run names no line of the beacon, and this run rests on one")
    return replace(published, first=manifest.first_line, after=date_of(manifest))


def date_of(manifest: Manifest) -> datetime:
    """Return when a manifest says it was made."""
    try:
        date = datetime.fromisoformat(manifest.created)
    except ValueError:
        date = datetime.max
    if date.tzinfo != UTC:
        raise MalformedMessage("the date of the run's manifest is not a time in UTC")
    return date


def check_run_hash(run: bytes, manifest: bytes) -> None:
    """The run id is the hash of the manifest: one that was made up could be one with a convenient selection."""
    if hashlib.sha256(manifest).digest() != run:
        raise ProtocolError("the server's run id is not the hash of the manifest that it shows")


def check_members(theirs: Manifest, own: Registry, me: ClientId) -> None:
    """The run has the members of this client's registry, with the same keys, and this client is one of them."""
    listed, known = theirs.members or {}, own.fingerprints()
    if me not in listed:
        raise ParametersRefused(
            f"client {me} is not a member of the server's run: who was approved after a run began joins its successor"
        )
    for u in sorted(listed.keys() | known.keys()):
        if listed.get(u) != known.get(u):
            raise ParametersRefused(
                f"the members of the server's run are not those of this client's registry: client {_shown(str(u))} is "
                f"{_described(listed.get(u))} in the manifest of the run and {_described(known.get(u))} in the "
                "registry. Get the registry that the run began with"
            )


def _described(fingerprint: str | None) -> str:
    return "not a member" if fingerprint is None else f"a member with keys {_shown(fingerprint)}"


def check_agreed(theirs: Manifest, own: Manifest) -> None:
    """The run has the registry, the configuration and the plan that this client's owner has agreed to."""
    found = _difference(_plain(own), _plain(theirs))
    if found is not None:
        field, here, there = found
        raise ParametersRefused(
            f"the server's run is not the one that this client's owner agreed to: '{field}' is {here} here and {there} "
            "in the manifest of the run. Give server and clients the same configuration and registry"
        )


def _plain(manifest: Manifest) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(manifest))
    except RecursionError:
        raise MalformedMessage("the manifest of the run is nested too deeply") from None


def _difference(own: Any, theirs: Any, field: str = "") -> tuple[str, str, str] | None:
    """Return the first field that differs, with both values; it goes no deeper than what is expected."""
    if field in FREE:
        return None
    if isinstance(own, dict) and isinstance(theirs, dict):
        for name in sorted(own.keys() | theirs.keys()):
            inner = f"{field}.{name}" if field else name
            if found := _difference(own.get(name), theirs.get(name), inner):
                return found
        return None
    if isinstance(own, float) and isinstance(theirs, int | float) and math.isclose(own, theirs, rel_tol=CLOSE):
        return None
    if type(own) is type(theirs) and own == theirs:
        return None
    return _shown(field), _shortened(own), _shortened(theirs)


def _shortened(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    return "not there" if value is None else _shown(str(value))


def _shown(text: str) -> str:
    """Return the beginning of what a server wrote, as it may be printed: in one line, and without escapes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:80])
