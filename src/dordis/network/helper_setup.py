"""Set-up of a helper: its policy, keys, registry and state, and the participant that stays connected to a server.

A helper needs no data, model or configuration of the run: the manifest, which the server sends, lists the run's
members and helpers.  An *epoch key* is a helper's key pair for one round, to which clients encrypt their mask seeds.
Paths: `identity` is the helper's key file, `registry` the file of the signed registry, `state` the helper's directory,
and `trusted` the file with the authorities of a load balancer, if one terminates TLS.
"""

import asyncio
import logging
import os
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from dordis.config.schema import Closing, Federation
from dordis.errors import DordisError, InputError, MalformedMessage, ParametersRefused
from dordis.identity.keys import ClientCredentials, load_client_credentials
from dordis.identity.registry import Registry, SignedRegistry, members_before, registry_with_helpers
from dordis.identity.revocations import check_revocations
from dordis.network.authentication import LoginCredentials, utc_now
from dordis.network.client import Participant
from dordis.network.client_transfers import Address
from dordis.network.helper_directory import COUNT, BoxJournal, FileHelperStore, ServedRounds
from dordis.network.messages import Welcome
from dordis.owner.manifest_checks import check_members, check_run_hash, read_manifest, run_beacon
from dordis.protocol import Message
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.assisted.helper import DAY, KEYS_AHEAD, AssistedHelper, HelperPolicy, erase_expired_keys
from dordis.protocols.assisted.messages import BoxesOpened, Introduce, OpenBoxes
from dordis.records.manifest import Manifest
from dordis.runs.parties import SelectionRule
from dordis.selection.beacon import FileBeacon
from dordis.selection.selection import Selection

log = logging.getLogger("dordis.network")

EXPIRY_PAUSE = 60.0
"""Seconds between two searches for expired epoch keys."""


@dataclass(frozen=True)
class JournaledHelper:
    """A helper that counts its rounds, and stores requests to open boxes (encrypted mask seeds) before it replies."""

    helper: AssistedHelper
    boxes: BoxJournal
    served: ServedRounds
    rounds_a_day: int
    now: Callable[[], datetime] = utc_now

    def handle(self, request: Message) -> Message:
        """Return the reply to a request; raise if the helper refuses it."""
        if isinstance(request, Introduce):  # new rounds are bounded: their key files stay on disk
            self.helper.check_request(request)
            self.served.serve(request.round, self.now(), self.rounds_a_day)
        reply = self.helper.handle(request)
        if isinstance(request, OpenBoxes) and isinstance(reply, BoxesOpened) and not reply.unable:
            self.boxes.append(request)  # after verification, so that invalid boxes cannot fill the disk
        return reply

    def restore(self, run: bytes) -> None:
        """Open the boxes of the latest round again after a restart, if that round is of this run.

        Boxes for an erased epoch key stay closed.  If a box is refused now, for example because its client was revoked,
        that box and all boxes after it stay closed.  In both cases this helper cannot finish that round.
        """
        self.boxes.cut()
        try:
            for request in self.boxes.read():
                if request.parameters.run == run:
                    self.helper.handle(request)
        except DordisError as error:
            log.warning("the boxes of an earlier round stay closed: %s", error)


@dataclass(frozen=True)
class HelperInstallation:
    """Keys, registry, policy and state directory of a helper; none of them comes from a server."""

    credentials: ClientCredentials
    registry: Path
    policy: HelperPolicy
    state: Path
    beacon: FileBeacon | None = None
    """The helper's own copy of the published randomness, by which it verifies the selection of clients."""

    def create_helper(self, welcome: Welcome) -> JournaledHelper:
        """Return the helper of a run, and restore an open round; raise if registry or policy do not allow the run."""
        me = self.credentials.client
        check_run_hash(welcome.run, welcome.manifest)
        signed = SignedRegistry.load(self.registry, self.credentials.authority)
        revoked = signed.membership.revoked
        manifest = read_manifest(welcome.manifest, len(signed.membership.members) + len(revoked))
        helpers = manifest.assistance.helpers if manifest.assistance else ()
        check_named(int(me), helpers)
        members = members_before(registry_with_helpers(signed, helpers), revoked, manifest.members or {})
        check_members(manifest, members, manifest.clients)
        check_revocations(manifest, members, revoked)
        lifetime, store = key_lifetime(manifest), self.open_store()
        check_key_days(lifetime, self.policy.key_days)
        helper = AssistedHelper(
            me,
            secret=self.credentials.keys.signing,
            registry=members.signing_keys({gone.keys.signing for gone in revoked}),
            store=store,
            policy=self.policy,
            threads=os.cpu_count() or 1,
            lifetime=lifetime,
            run=welcome.run,
            verify_client=run_selection(manifest, members, welcome.run, self.beacon).verify_client,
        )
        journaled = JournaledHelper(
            helper, BoxJournal(self.state / "boxes"), ServedRounds(self.state / "rounds"), self.policy.rounds_a_day
        )
        journaled.restore(welcome.run)
        return journaled

    def open_store(self) -> FileHelperStore:
        """Return the store in the state directory; if that is an older copy (a backup), its keys are erased."""
        store = FileHelperStore(self.state / "values", self.credentials.key_file.with_suffix(COUNT))
        if store.is_older_copy:
            log.warning("the state of this helper is an older copy: it answers nothing for the rounds of its old keys")
        return store


def check_named(helper: int, helpers: tuple[int, ...]) -> None:
    """Raise ParametersRefused unless the run names this party as a helper."""
    if helper not in helpers:
        raise ParametersRefused(f"the server's run does not name {helper} as a helper")


def run_selection(manifest: Manifest, members: Registry, run: bytes, published: FileBeacon | None) -> Selection:
    """Return the selection that a manifest states; raise InputError if it needs a beacon and `published` is None."""
    is_drawn = manifest.first_line is not None
    if is_drawn and published is None:
        raise InputError(
            "public randomness selects the clients of this run, and a helper verifies that: pass the file with --beacon"
        )
    beacon = run_beacon(manifest, published) if is_drawn and published is not None else None
    return SelectionRule(manifest.selection, manifest.per_round, 1, is_drawn).selection(members, run, beacon)


def key_lifetime(manifest: Manifest) -> int:
    """Return the seconds for which a helper keeps the private half of an epoch key.

    A helper makes the keys of the next KEYS_AHEAD rounds at a time.  The lifetime is the longest time for which
    KEYS_AHEAD rounds, one after the other, may be open, plus a day.
    """
    federation = manifest.config.get("federation", {})
    try:
        given = msgspec.convert(federation, Federation, strict=False).closing or Closing()
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"the manifest of the run has no valid section 'federation': {error}") from None
    return int(KEYS_AHEAD * given.seconds * (1 + given.extensions)) + DAY


def check_key_days(lifetime: int, most: int) -> None:
    """Raise ParametersRefused if keys would be kept for `lifetime` seconds and the policy allows `most` days."""
    if lifetime > most * DAY:
        raise ParametersRefused(
            f"the helper's policy, line 'key_days', forbids this run: its rounds stay open so long that keys would be "
            f"kept for {lifetime / DAY:.1f} days"
        )


def read_policy(path: Path | None) -> HelperPolicy:
    """Return the policy of a helper from a TOML file; without a file, the default policy."""
    if path is None:
        return HelperPolicy()
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), HelperPolicy)
    except OSError as error:
        raise InputError(f"cannot read the policy {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path} is not a helper's policy: {error}") from None


class Assistant(Participant):
    """A helper that stays connected to a server; it erases the private halves of its epoch keys when they expire."""

    def __init__(self, address: Address, login: LoginCredentials, installation: HelperInstallation) -> None:
        super().__init__(address, login, self._create, ASSISTED)
        self._installation = installation
        self._helper: JournaledHelper | None = None

    def _create(self, welcome: Welcome) -> JournaledHelper:
        self._helper = self._installation.create_helper(welcome)
        return self._helper

    async def stay(self, once: bool = False, follow: bool = False) -> None:
        """Serve until the run is over; with `follow` also in the server's next runs, with `once` for one connection."""
        erasing = asyncio.ensure_future(self._erase_expired())
        try:
            await super().stay(once, follow)
        finally:
            erasing.cancel()

    async def _erase_expired(self) -> None:
        while True:
            if self._helper is None:  # no connection was made since the start
                erase_expired_keys(self._installation.open_store(), time.time())
            else:
                async with self._handling:  # no request uses the keys while they are erased
                    self._helper.helper.erase_expired()
            await asyncio.sleep(EXPIRY_PAUSE)


def create_assistant(
    url: str,
    identity: Path,
    registry: Path,
    state: Path,
    policy: Path | None,
    trusted: Path | None,
    *,
    mutual: bool,
    beacon: Path | None = None,
) -> Assistant:
    """Return a helper, not yet connected; raise InputError if one of its files cannot be used.

    `state` is its directory.  Without `policy` the default policy holds.  `LoginCredentials` explains `mutual` and
    `trusted`.
    """
    credentials = load_client_credentials(identity, utc_now())
    SignedRegistry.load(registry, credentials.authority)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    published = None if beacon is None else FileBeacon(beacon)
    installation = HelperInstallation(credentials, registry, read_policy(policy), state, published)
    return Assistant(Address.from_url(url), LoginCredentials(credentials, mutual, trusted), installation)
