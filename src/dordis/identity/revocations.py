"""No run begins with revoked keys: clients and helpers check this at log-in, and auditors when they verify a run."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from dordis.errors import MalformedMessage, ParametersRefused
from dordis.identity.registry import Registry, RevokedKeys
from dordis.protocol import ClientId
from dordis.records.manifest import Manifest

CLOCK_ERROR = timedelta(minutes=10)
"""Largest difference between the clocks of the authority and a server that the checks tolerate."""


def creation_time(manifest: Manifest) -> datetime:
    """Return the creation time in a manifest; raise MalformedMessage if it is not a time in UTC."""
    try:
        date = datetime.fromisoformat(manifest.created)
    except ValueError:
        date = datetime.max
    if date.tzinfo != UTC:
        raise MalformedMessage("the date of the run's manifest is not a time in UTC")
    return date


def check_revocations(theirs: Manifest, members: Registry, revoked: Sequence[RevokedKeys]) -> None:
    """Raise ParametersRefused if a key of the run was revoked more than CLOCK_ERROR before the run began.

    `theirs` is the server's manifest; `members` has the keys of clients and helpers with which the run began.
    """
    for gone in revoked:
        client, keys = ClientId(gone.client), gone.keys.identity
        for role, those in (("client", members), ("helper", members.helpers)):
            if those.get(client) != keys or creation_time(theirs) <= datetime.fromisoformat(gone.when) + CLOCK_ERROR:
                continue
            raise ParametersRefused(
                f"the server's run began on {printable(theirs.created)} with keys of {role} {client} "
                f"('{gone.keys.name}') that were revoked on {gone.when}: the server needs the newest registry"
            )


def printable(text: str) -> str:
    """Return the first 80 characters of a server's text, safe to print: control characters are replaced."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:80])
