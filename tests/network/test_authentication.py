"""Authentication over real TLS: both ways to log in, and everyone who is refused, with the reason."""

import asyncio
import secrets
import shutil
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import ClientConnectorError, ClientSession

from dordis.errors import InputError, LoginRefused
from dordis.identity.authority import Authority, new_request
from dordis.identity.certificates import new_tls_key, to_der
from dordis.identity.keys import PrivateKeys, load_client_credentials, load_keys, load_server_credentials, save_keys
from dordis.identity.registry import Admission
from dordis.network.authentication import (
    Authenticator,
    ExpiryWatch,
    LoginCredentials,
    client_context,
    explain_tls_error,
    server_context,
    sign_challenge,
    verify_answer,
    verify_certificate,
)
from dordis.network.client_transfers import describe_error
from dordis.owner.directory import ClientDirectory
from tests.runs.parties import approved, authority_at, drawn, joined

NOW = datetime.now(UTC)  # OpenSSL compares certificates with the clock of the machine


class Federation:
    def __init__(self, path, now=NOW):
        self.path = path
        self.authority = authority_at(path / "federation", now)
        self.server = load_server_credentials(
            joined(self.authority, path / "server.key", hosts=("localhost", "127.0.0.1")), now
        )
        for name in ("alice", "bob"):
            joined(self.authority, path / f"{name}.key")
        self.run = self.authority.registry.registry

    def client(self, name="alice", now=NOW):
        return load_client_credentials(self.path / f"{name}.key", now)

    @property
    def admission(self):
        return Admission(self.run, self.authority.registry)

    def certificate_login(self, shown, now=NOW):
        return verify_certificate(shown, self.authority.certificate, self.admission, now)

    def challenge_login(self, answer, challenge, seen=None, now=NOW):
        seen = [to_der(self.server.certificate)] if seen is None else seen
        return verify_answer(answer, challenge, seen, self.authority.certificate, self.admission, now)


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


@pytest.fixture
def other(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return Federation(tmp_path / "elsewhere")


def connected(server, client, host="localhost"):
    """Return both ends of a TLS connection in memory, the client's first."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    return (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )


def shake_hands(ends):
    """Bring a handshake to its end, or raise what the side that refuses raises."""
    waiting = list(ends)
    while waiting:
        for end in tuple(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue


def handshake(server, client, host="localhost"):
    ends = connected(server, client, host)
    shake_hands(ends)
    return ends


def test_mutual_tls_says_who_the_client_is(federation):
    mine, theirs = handshake(server_context(federation.server), client_context(federation.client("bob")))
    assert mine.version() == theirs.version() == "TLSv1.3"
    assert federation.certificate_login(theirs.getpeercert(binary_form=True)) == 2


def test_one_way_tls_with_a_challenge_says_who_the_client_is(federation):
    bob = federation.client("bob")
    mine, theirs = handshake(server_context(federation.server, mutual=False), client_context(bob, mutual=False))
    assert theirs.getpeercert(binary_form=True) is None
    challenge = secrets.token_bytes(32)
    assert (
        federation.challenge_login(sign_challenge(challenge, bob, mine.getpeercert(binary_form=True)), challenge) == 2
    )


def test_one_server_can_offer_both(federation):
    context, bob = server_context(federation.server, required=False), federation.client("bob")
    shown = [handshake(context, client_context(bob, mutual=m))[1].getpeercert(binary_form=True) for m in (0, 1)]
    assert shown == [None, to_der(bob.certificate)]


def test_a_server_that_asks_for_a_certificate_gets_one_or_refuses(federation):
    with pytest.raises(ssl.SSLError) as refusal:
        handshake(
            server_context(federation.server),
            client_context(federation.client(), mutual=False),
        )
    assert "DID_NOT_RETURN_A_CERTIFICATE" in refusal.value.reason


def test_tls_refuses_another_federation_on_either_side(federation, other):
    server, client = server_context(federation.server), client_context(other.client())
    with pytest.raises(ssl.SSLCertVerificationError) as refusal:
        handshake(server, client)
    assert "another authority" in explain_tls_error(refusal.value)
    lured = client_context(other.client(), trusted=federation.path / "federation" / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError) as refusal:
        handshake(server, lured)
    assert "another authority" in explain_tls_error(refusal.value)


@pytest.mark.parametrize(("shift", "reason"), [(-400, "has expired"), (400, "not valid yet")])
def test_tls_refuses_a_certificate_out_of_its_time(tmp_path, shift, reason):
    past = Federation(tmp_path, NOW)
    made = Authority(past.authority.path, NOW + timedelta(days=shift))
    (tmp_path / "alice.cert").write_bytes(made.issue("alice").pem)
    alice = load_client_credentials(tmp_path / "alice.key", NOW + timedelta(days=shift))
    with pytest.raises(ssl.SSLCertVerificationError) as refusal:
        handshake(server_context(past.server), client_context(alice))
    assert reason in explain_tls_error(refusal.value)


def test_tls_refuses_another_host_and_a_client_that_poses_as_the_server(federation):
    client = client_context(federation.client())
    for host in ("example.org", "127.0.0.2"):
        with pytest.raises(ssl.SSLCertVerificationError) as refusal:
            handshake(server_context(federation.server), client, host)
        assert "issued for this one" in explain_tls_error(refusal.value)
    with pytest.raises(ssl.SSLCertVerificationError) as refusal:
        handshake(server_context(federation.client("bob")), client)
    assert "another purpose" in explain_tls_error(refusal.value)


def test_a_client_may_trust_the_authorities_of_a_load_balancer(federation, other, tmp_path):
    ends = handshake(
        server_context(other.server, mutual=False),
        client_context(federation.client(), mutual=False, trusted=other.path / "federation" / "ca.pem"),
    )
    challenge, alice = secrets.token_bytes(32), federation.client()
    answer = sign_challenge(challenge, alice, ends[0].getpeercert(binary_form=True))
    assert federation.challenge_login(answer, challenge, [to_der(other.server.certificate)]) == 1
    with pytest.raises(LoginRefused, match="load balancer"):
        federation.challenge_login(answer, challenge)
    with pytest.raises(InputError, match="PEM"):
        client_context(alice, trusted=tmp_path / "nothing.pem")


def test_a_client_whose_certificate_tls_refuses_is_told_why(federation, other):
    lured = client_context(other.client(), trusted=federation.path / "federation" / "ca.pem")
    without = client_context(federation.client(), mutual=False)
    for client, reason in ((lured, "another federation"), (without, "none was shown")):
        mine, theirs = connected(server_context(federation.server), client)
        with pytest.raises(ssl.SSLError):
            shake_hands((mine, theirs))
        with pytest.raises(ssl.SSLError) as refusal:  # in TLS 1.3 the client is through before the server refuses
            mine.read()
        assert reason in explain_tls_error(refusal.value)


def test_whatever_else_goes_wrong_with_tls_is_said_in_one_line(federation):
    incoming = ssl.MemoryBIO()
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    plain = client_context(federation.client()).wrap_bio(incoming, ssl.MemoryBIO(), server_hostname="localhost")
    with pytest.raises(ssl.SSLError) as refusal:
        plain.do_handshake()
    assert "does not speak TLS" in explain_tls_error(refusal.value)
    assert explain_tls_error(ssl.SSLError(1, "[SSL: STRANGE] words")).startswith("TLS failed")


def both(federation, name, now=NOW, at=NOW):
    """Return the two log-ins of a client, as functions."""
    own, challenge = federation.client(name, at), secrets.token_bytes(32)
    answer = sign_challenge(challenge, own, to_der(federation.server.certificate))
    return (
        lambda: federation.certificate_login(to_der(own.certificate), now),
        lambda: federation.challenge_login(answer, challenge, now=now),
    )


def refused(logins, reason):
    for attempt in logins:
        with pytest.raises(LoginRefused, match=reason) as refusal:
            attempt()
        assert "\n" not in str(refusal.value)


def test_a_revoked_client_is_refused_at_once_though_its_run_goes_on(federation):
    logins = both(federation, "alice")
    assert [attempt() for attempt in logins] == [1, 1]
    federation.authority.revoke("alice", "stolen")
    refused(logins, r"client 1 \('alice'\) were revoked")
    assert [attempt() for attempt in both(federation, "bob")] == [2, 2]


def test_a_client_that_was_approved_after_the_run_began_is_unknown(federation):
    joined(federation.authority, federation.path / "carol.key")
    refused(both(federation, "carol"), "unknown to this run")


def test_a_client_of_another_federation_is_refused(federation, other):
    logins = both(other, "alice")
    stranger = to_der(other.client().certificate)
    refused([lambda: federation.certificate_login(stranger)], "another federation")
    assert [attempt() for attempt in logins] == [1, 1]
    challenge = secrets.token_bytes(32)
    answer = sign_challenge(challenge, other.client(), to_der(federation.server.certificate))
    refused([lambda: federation.challenge_login(answer, challenge)], "another federation")


def test_an_expired_or_early_certificate_is_refused(federation):
    refused(both(federation, "alice", NOW + timedelta(days=366)), "expired on")
    refused(both(federation, "alice", NOW - timedelta(days=2)), "not valid before")


def test_keys_that_were_replaced_are_refused_and_new_ones_wait_for_the_next_run(federation):
    old, new = load_keys(federation.path / "alice.key"), drawn()
    before = both(federation, "alice")
    save_keys(federation.path / "next.key", new)
    approved(federation.authority, federation.path / "next.key", new_request("alice", new, replaces=old.keys))
    refused(before, "revoked")
    refused(both(federation, "next"), "other keys in the registry of this run")
    federation.run = federation.authority.registry.registry
    assert [attempt() for attempt in both(federation, "next")] == [1, 1]


def test_a_tls_key_that_was_replaced_is_refused_and_the_new_one_admitted_in_the_same_run(federation):
    old = load_keys(federation.path / "alice.key")
    before, again = both(federation, "alice"), PrivateKeys(new_tls_key(), old.keys)
    save_keys(federation.path / "next.key", again)
    approved(federation.authority, federation.path / "next.key", new_request("alice", again, replaces=old.keys))
    refused(before, "TLS key of client 1 was replaced")
    assert [attempt() for attempt in both(federation, "next")] == [1, 1]


def test_a_server_does_not_log_in_as_a_client(federation):
    refused([lambda: federation.certificate_login(to_der(federation.server.certificate))], "not one of a client")
    refused([lambda: federation.certificate_login(b"no certificate")], "not a certificate")


def test_an_answer_is_good_for_its_challenge_alone(federation):
    alice, seen = federation.client(), to_der(federation.server.certificate)
    first, second = secrets.token_bytes(32), secrets.token_bytes(32)
    answer = sign_challenge(first, alice, seen)
    assert federation.challenge_login(answer, first) == 1
    refused([lambda: federation.challenge_login(answer, second)], "did not sign this challenge")


def test_a_relayed_challenge_is_worth_nothing(federation):
    """A server of the same federation, which has a good certificate, passes the challenge of another one on."""
    joined(federation.authority, federation.path / "mallory.key", hosts=("localhost",))
    mallory = load_server_credentials(federation.path / "mallory.key", NOW)
    alice, challenge = federation.client(), secrets.token_bytes(32)
    ends = handshake(server_context(mallory, mutual=False), client_context(alice, mutual=False))
    answer = sign_challenge(challenge, alice, ends[0].getpeercert(binary_form=True))
    refused([lambda: federation.challenge_login(answer, challenge)], "did not sign this challenge")


def test_nobody_answers_with_the_certificate_of_another(federation):
    challenge, seen = secrets.token_bytes(32), to_der(federation.server.certificate)
    alice, bob = (sign_challenge(challenge, federation.client(name), seen) for name in ("alice", "bob"))
    mixed = alice[:64] + bob[64:]
    refused([lambda: federation.challenge_login(mixed, challenge)], "client 2 did not sign")


@pytest.mark.parametrize(
    "change",
    [lambda a: b"", lambda a: a[:64], lambda a: a + bytes(5000), lambda a: bytes(64) + a[64:], lambda a: a[1:]],
)
def test_a_malformed_answer_is_refused(federation, change):
    challenge = secrets.token_bytes(32)
    answer = sign_challenge(challenge, federation.client(), to_der(federation.server.certificate))
    refused([lambda: federation.challenge_login(change(answer), challenge)], ".")


def test_a_client_answers_no_malformed_challenge_and_none_without_tls(federation):
    seen = to_der(federation.server.certificate)
    for challenge, shown in ((b"", seen), (bytes(31), seen), (bytes(33), seen), (bytes(32), b"")):
        with pytest.raises(LoginRefused, match="malformed"):
            sign_challenge(challenge, federation.client(), shown)


def test_an_older_registry_in_the_place_of_the_newest_brings_nobody_back(federation):
    signed, before = federation.path / "signed.json", federation.authority.registry
    authenticator = Authenticator(federation.server, federation.run, signed)
    before.save(signed)
    assert authenticator.revoked_members() == frozenset()
    federation.authority.revoke("alice", "")
    federation.authority.registry.save(signed)
    assert authenticator.revoked_members() == {1}
    before.save(signed)
    assert authenticator.revoked_members() == {1}


def test_a_client_remembers_the_newest_registry_of_every_authority(federation, other):
    directory, before = ClientDirectory(federation.path / "state"), federation.authority.registry
    joined(federation.authority, federation.path / "carol.key")
    for shown in (federation.authority.registry, before):  # nobody was revoked: an older run goes on
        directory.remember(shown, federation.authority.certificate)
    directory.remember(other.authority.registry, other.authority.certificate)
    federation.authority.revoke("carol", "")
    directory.remember(before, federation.authority.certificate)
    directory.remember(federation.authority.registry, federation.authority.certificate)
    directory.remember(before, federation.authority.certificate)
    federation.authority.revoke("alice", "")
    directory.remember(federation.authority.registry, federation.authority.certificate)
    with pytest.raises(InputError, match="'alice' is revoked: get the newest one"):
        directory.remember(before, federation.authority.certificate)


@pytest.mark.parametrize("damage", [lambda path, data: path.unlink(), lambda path, data: path.write_bytes(data[:99])])
def test_a_registry_that_cannot_be_read_for_a_while_leaves_the_last_one_in_force(federation, caplog, damage):
    signed = federation.path / "signed.json"
    authenticator = Authenticator(federation.server, federation.run, signed)
    federation.authority.revoke("alice", "")
    federation.authority.registry.save(signed)
    assert authenticator.revoked_members() == {1}
    damage(signed, signed.read_bytes())
    assert authenticator.revoked_members() == {1}
    assert "the registry cannot be read, and its version 4 stays in force" in caplog.text
    federation.authority.revoke("bob", "")
    federation.authority.registry.save(signed)
    assert authenticator.revoked_members() == {1, 2}


def test_a_server_does_not_start_without_a_registry(federation):
    with pytest.raises(InputError, match="cannot read the registry"):
        Authenticator(federation.server, federation.run, federation.path / "none.json").revoked_members()


def test_the_end_of_a_certificate_is_announced_at_30_and_at_7_days(federation, caplog):
    certificate, said = federation.server.certificate, []
    time = [certificate.not_valid_after_utc]
    watch = ExpiryWatch("the server's", lambda: time[0])
    for days in (40, 30, 29.5, 20, 7, 6.9, 5, 0.5):
        time[0] = certificate.not_valid_after_utc - timedelta(days=days)
        caplog.clear()
        watch.announce(certificate)
        said.append((days, [record.getMessage()[:42] for record in caplog.records]))
    assert [(days, lines) for days, lines in said if lines] == [
        (29.5, ["the server's certificate expires in 29 day"]),
        (6.9, ["the server's certificate expires in 6 days"]),
    ]


def test_a_reissued_certificate_is_used_after_a_reload_and_other_keys_are_not(federation):
    authenticator = Authenticator(federation.server, federation.run, federation.path / "signed.json")
    login, old = LoginCredentials(federation.client()), authenticator.credentials.certificate
    for name in ("server", "alice"):
        (federation.path / f"{name}.cert").write_bytes(federation.authority.issue(name).pem)
    authenticator.reload_certificate()
    assert authenticator.credentials.certificate.serial_number != old.serial_number
    assert login.reload().certificate.serial_number != login.certificate.serial_number
    for ending in (".key", ".cert"):
        shutil.copy(federation.path / f"bob{ending}", federation.path / f"alice{ending}")
    with pytest.raises(InputError, match="has other keys than before"):
        login.reload()


def failed_connection(tls, client):
    """Return what a client says of a server with this TLS context, or of a server without TLS."""

    async def answer(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def connect():
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server, ClientSession() as session:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ClientConnectorError) as refusal:
                await session.get(f"https://127.0.0.1:{port}/", ssl=client)
        return describe_error(refusal.value)

    return asyncio.run(connect())


def test_a_client_says_why_it_does_not_accept_a_server(federation, other):
    client = client_context(federation.client())
    assert "another federation" in failed_connection(server_context(other.server), client)
    assert "another purpose" in failed_connection(server_context(federation.client("bob")), client)
    assert "does not speak TLS: check that the address" in failed_connection(None, client)
