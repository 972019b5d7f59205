"""Checks of a run's manifest by a client at log-in, before it answers any request.

The run id must be the manifest's hash.  Configuration and plan must be those that the owner agreed to.  The members
must be those in the client's registry, as it is now or as it was before some keys were revoked.  The time of the first
beacon line that selects clients must be later than the creation time of the manifest.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dordis.errors import MalformedMessage, ParametersRefused, ProtocolError
from dordis.identity.registry import Registry, RevokedKeys, members_before
from dordis.identity.revocations import check_revocations, creation_time, printable
from dordis.protocol import ClientId
from dordis.records.manifest import Manifest
from dordis.selection.beacon import FileBeacon

LARGEST = 1 << 20
"""Largest size of a manifest in bytes, without its members; usual manifests have about 5,000."""
MEMBER_BYTES = 64
"""Largest size of a member in bytes: its id and the fingerprint of its keys."""
ROUNDING = 1e-9
"""Largest relative difference of two numbers that is attributed to rounding on different machines."""
MAY_DIFFER = frozenset(
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
        "config.deployment.test",
        "config.deployment.poll",
        "config.deployment.runs_a_day",
        "config.deployment.trainings",
    }
)
"""Fields in which the server's manifest may differ: settings of one machine, and fields that other checks cover."""


def read_manifest(data: bytes, members: int) -> Manifest:
    """Return the manifest of a run with up to `members` members; raise MalformedMessage if malformed or too large."""
    limit = LARGEST + MEMBER_BYTES * members
    if len(data) > limit:
        raise MalformedMessage(f"the manifest of the run has {len(data)} bytes, more than {limit}")
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"the manifest of the run cannot be read: {printable(str(error))}") from None


def run_beacon(manifest: Manifest, published: FileBeacon) -> FileBeacon:
    """Return the beacon of one run, which begins at the line of the beacon `published` that the manifest names.

    It refuses lines that are not later than the manifest.  Raise ParametersRefused if the manifest names no line.
    """
    if manifest.first_line is None or manifest.first_line < 0:
        raise ParametersRefused("the manifest names no first line of the beacon, which this run needs")
    return replace(published, first=manifest.first_line, after=creation_time(manifest))


def check_run_hash(run: bytes, manifest: bytes) -> None:
    """Raise ProtocolError unless the run id is the hash of the manifest, so that no server can choose it freely."""
    if hashlib.sha256(manifest).digest() != run:
        raise ProtocolError("the server's run id is not the hash of the manifest that it shows")


def run_members(
    theirs: Manifest, own: Registry, revoked: Sequence[RevokedKeys], me: ClientId, planned: int
) -> Registry:
    """Return the registry of a run's members: the client's registry `own` as it was when the run began.

    Members that joined later are left out, and keys that were revoked later are listed again.  The server's manifest
    is `theirs`.  Raise ParametersRefused unless it lists exactly these members, `me` among them, and as many as are
    `planned`; raise it too if it names a client or helper whose keys were revoked before the run began.
    """
    listed = theirs.members or {}
    if me not in listed:
        raise ParametersRefused(
            f"client {me} is not a member of the server's run: a client approved after a run began joins its successor"
        )
    members = members_before(own, revoked, listed)
    check_members(theirs, members, planned)
    check_revocations(theirs, members, revoked)
    return members


def check_members(theirs: Manifest, members: Registry, planned: int) -> None:
    """Raise ParametersRefused unless the manifest lists exactly these members and keys, `planned` in number."""
    listed, known = theirs.members or {}, members.fingerprints()
    for u in sorted(listed.keys() | known.keys()):
        if listed.get(u) != known.get(u):
            raise ParametersRefused(
                "the members of the server's run are not those of this client's registry: client "
                f"{printable(str(u))} is {_describe_member(listed.get(u))} in the manifest of the run and "
                f"{_describe_member(known.get(u))} in the registry. Get the newest registry"
            )
    if len(listed) != planned:
        raise ParametersRefused(
            f"the server's run has {len(listed)} members, but federation.clients is {planned} here: give server and "
            "clients the newest registry and the same configuration"
        )


def _describe_member(fingerprint: str | None) -> str:
    return "not a member" if fingerprint is None else f"a member with keys {printable(fingerprint)}"


def check_agreed(theirs: Manifest, own: Manifest) -> None:
    """Raise ParametersRefused unless the manifest has the registry, configuration and plan that the owner agreed to."""
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
    """Return the first differing field outside MAY_DIFFER, with both values as text; None if there is none.

    A field that only one manifest has is compared with None.
    """
    if field in MAY_DIFFER:
        return None
    if isinstance(own, dict) and isinstance(theirs, dict):
        for name in sorted(own.keys() | theirs.keys()):
            inner = f"{field}.{name}" if field else name
            if found := _difference(own.get(name), theirs.get(name), inner):
                return found
        return None
    if isinstance(own, float) and isinstance(theirs, int | float) and math.isclose(own, theirs, rel_tol=ROUNDING):
        return None
    if type(own) is type(theirs) and own == theirs:
        return None
    return printable(field), _describe_value(own), _describe_value(theirs)


def _describe_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    return "not there" if value is None else printable(str(value))
