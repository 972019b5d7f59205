"""Each check of identities and log-in is needed: without it, an attack that is refused succeeds."""

import json
import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dordis.errors import DordisError
from dordis.identity import authority, certificates
from dordis.identity import keys as identity
from dordis.identity.authority import Authority, check_possession, check_replaced, new_request, read_request
from dordis.identity.certificates import Identity, new_tls_key, to_der
from dordis.identity.keys import Keys, PrivateKeys, load_client_credentials, load_keys, load_server_credentials
from dordis.identity.registry import (
    Member,
    SignedRegistry,
    check_not_older,
    check_not_revoked,
    check_registered,
    check_signature,
)
from dordis.network import authentication
from dordis.network.sessions import Session, Sessions
from dordis.owner.directory import ClientDirectory
from tests.adversary.test_mutations import take_out
from tests.network.test_authentication import NOW, Federation
from tests.runs.parties import drawn, joined


def revoked(federation: Federation) -> bool:
    """Log in with keys that were revoked."""
    shown = to_der(federation.client().certificate)
    federation.authority.revoke("alice", "")
    return federation.certificate_login(shown) == 1


def approved_later(federation: Federation) -> bool:
    """Log in to a run that began before."""
    joined(federation.authority, federation.path / "carol.key")
    return federation.certificate_login(to_der(federation.client("carol").certificate)) == 3


def of_another_federation(federation: Federation) -> bool:
    """Log in as client 1, with the keys that it has, in a certificate of one's own making."""
    (federation.path / "elsewhere").mkdir()
    forger = Authority.create(federation.path / "elsewhere", "federation", NOW)
    victim = federation.client().keys
    forged = forger.approve(read_request(new_request("alice", PrivateKeys(new_tls_key(), victim)))).certificate
    return federation.certificate_login(to_der(forged)) == 1


def expired(federation: Federation) -> bool:
    """Log in with a certificate of the year before."""
    return federation.certificate_login(to_der(federation.client().certificate), NOW + timedelta(days=366)) == 1


def relayed(federation: Federation) -> bool:
    """Pass on the challenge of a server, as another server, to a client that trusts both."""
    joined(federation.authority, federation.path / "mallory.key", hosts=("localhost",))
    mallory = load_server_credentials(federation.path / "mallory.key", NOW)
    challenge = secrets.token_bytes(32)
    answered = authentication.sign_challenge(challenge, federation.client(), to_der(mallory.certificate))
    return federation.challenge_login(answered, challenge) == 1


def without_the_key(federation: Federation) -> bool:
    """Answer a challenge with somebody's certificate, which is public."""
    return federation.challenge_login(bytes(64) + to_der(federation.client().certificate), secrets.token_bytes(32)) == 1


def twice(federation: Federation) -> bool:
    """Connect as a client that is connected already, from another machine."""
    connected, client = Sessions(), federation.client().client
    socket: Any = None
    for machine in (b"first", b"second"):
        connected.add(Session(client, machine, socket))
    return True


def with_the_keys_of_others(federation: Federation) -> bool:
    """Have public keys registered as one's own that belong to somebody else."""
    victim = drawn().keys.identity()

    class Pretended(Keys):
        def identity(self) -> Identity:
            return victim

    asked = read_request(new_request("mallory", PrivateKeys(new_tls_key(), Pretended.generate())))
    client = federation.authority.approve(asked).client
    return federation.authority.registry.registry[client] == victim


def in_place_of_others(federation: Federation) -> bool:
    """Have the keys of a member replaced by one's own."""
    victim = load_keys(federation.path / "alice.key").keys.identity().signing
    asked = json.loads(new_request("alice", drawn(), replaces=Keys.generate()))
    forged = json.dumps({**asked, "replaces": victim.hex()}).encode()
    return federation.authority.approve(read_request(forged)).client == 1


def back_again(federation: Federation) -> bool:
    """Become a member with keys that were revoked."""
    own = load_keys(federation.path / "alice.key")
    federation.authority.revoke("alice", "")
    asked = read_request(new_request("innocent", PrivateKeys(new_tls_key(), own.keys)))
    return federation.authority.approve(asked).client == 3


def under_the_name_of_another(federation: Federation) -> bool:
    """Get a certificate with the name of a member."""
    return federation.authority.approve(read_request(new_request("alice", drawn()))).name == "alice"


def altered_registry(federation: Federation) -> bool:
    """Show clients a registry with a member that the authority does not know."""
    current = federation.authority.registry
    more = {**current.membership.members, 3: Member.from_identity("mallory", drawn().keys.identity())}
    forged = SignedRegistry.sign(msgspec.structs.replace(current.membership, members=more), new_tls_key())
    return 3 in SignedRegistry.from_bytes(forged.data, federation.authority.certificate).registry


def older_registry(federation: Federation) -> bool:
    """Show a client a registry of before a revocation that it has seen."""
    before, directory = federation.authority.registry, ClientDirectory(federation.path / "bob")
    federation.authority.revoke("alice", "")
    for shown in (federation.authority.registry, before):
        directory.remember(shown, federation.authority.certificate)
    return True


def readable_by_others(federation: Federation) -> bool:
    """Have a client use keys that everybody on its machine has read."""
    (federation.path / "alice.key").chmod(0o644)
    return federation.client().client == 1


def swapped_keys(federation: Federation) -> bool:
    """Have a client use keys of the protocol that its certificate does not bind."""
    own, path = load_keys(federation.path / "alice.key"), federation.path / "alice.key"
    path.unlink()
    identity.save_keys(path, PrivateKeys(own.tls, drawn().keys))
    return load_client_credentials(path, NOW).client == 1


ATTACKS: dict[Callable[[Federation], bool], tuple[Callable[..., object], ...]] = {
    revoked: (check_not_revoked,),
    approved_later: (check_registered,),
    of_another_federation: (certificates.check_issued_by,),
    expired: (certificates.check_valid_at,),
    relayed: (authentication.check_challenge_signed,),
    without_the_key: (authentication.check_challenge_signed,),
    twice: (Sessions.check_not_in_use,),
    with_the_keys_of_others: (check_possession,),
    in_place_of_others: (check_replaced,),
    back_again: (authority.check_new_keys,),
    under_the_name_of_another: (authority.check_new_name,),
    altered_registry: (check_signature,),
    older_registry: (check_not_older,),
    readable_by_others: (identity.check_private,),
    swapped_keys: (identity.check_bound,),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused_and_succeeds_once_its_check_is_taken_out(
    attack: Callable[[Federation], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("guarded", "open"):
        (tmp_path / folder).mkdir()
    guarded, unguarded = Federation(tmp_path / "guarded"), Federation(tmp_path / "open")
    with pytest.raises(DordisError):
        attack(guarded)
    for check in ATTACKS[attack]:
        take_out(monkeypatch, f"{check.__module__}.{check.__qualname__}")
    assert attack(unguarded)
