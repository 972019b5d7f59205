"""`dordis keys`: docs/identities.md as it stands, command by command, and what is refused in one line."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from dordis.identity.authority import new_request
from dordis.identity.certificates import load_certificate, new_tls_key
from dordis.identity.keys import PrivateKeys, load_keys
from dordis.identity.registry import SignedRegistry
from tests.cli.in_process import dordis

PAGE = (Path(__file__).parents[3] / "docs" / "identities.md").read_text(encoding="utf-8")
FIRST, LATER = (
    [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("dordis ")]
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)


def done(*arguments: str, cwd: Path) -> str:
    shown = dordis(*arguments, cwd=cwd)
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stderr
    return shown.stdout


def refused(*arguments: str, cwd: Path) -> str:
    shown = dordis(*arguments, cwd=cwd)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    return shown.stderr


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the first commands of the page were run, which no test may change."""
    path = tmp_path_factory.mktemp("founded")
    for command in FIRST:
        done(*command, cwd=path)
    return path


@pytest.fixture
def federation(founded: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    return Path(shutil.copytree(founded, tmp_path / "copy"))


def members(path: Path) -> dict[str, str]:
    """Return the state of every party, as `keys list` tells."""
    listed = json.loads(done("keys", "list", "federation", "--json", cwd=path))
    return {f"{party['name']} {party['id']}": party["state"].split(" ")[0] for party in listed["parties"]}


def test_the_page_leads_from_nothing_to_three_clients(federation: Path) -> None:
    assert members(federation) == {"alice 1": "member", "bob 2": "member", "carol 3": "member", "server -": "server"}
    for key in federation.rglob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    registry = SignedRegistry.load(
        federation / "federation" / "registry.json", load_certificate(federation / "federation" / "ca.pem")
    )
    assert list(registry.registry) == [1, 2, 3]
    assert registry.registry.root().hex() in done("keys", "list", "federation", cwd=federation)
    assert json.loads(done("keys", "list", "server.key", "--json", cwd=federation))["id"] == "server"


def test_the_page_leads_through_new_certificates_new_keys_and_revocation(federation: Path) -> None:
    for command in LATER:
        done(*command, cwd=federation)
    assert members(federation) == {
        "alice 1": "member",
        "bob 2": "revoked",  # the keys of before, after those of now: the same name and id
        "carol 3": "revoked",
        "server -": "server",
    }
    listed = json.loads(done("keys", "list", "federation", "--json", cwd=federation))["parties"]
    assert [(party["name"], party["state"].split(" ")[0]) for party in listed][:2] == [
        ("alice", "member"),
        ("bob", "member"),
    ]
    for name, client in (("alice-2", "1"), ("bob-2", "2")):
        assert json.loads(done("keys", "list", f"{name}.key", "--json", cwd=federation))["id"] == client


def test_every_file_of_the_table_is_there(federation: Path) -> None:
    names = re.findall(r"^\| `([\w./]+)` \|", PAGE, re.MULTILINE)
    assert len(names) == 7
    for name in names:
        assert (federation / name).exists() or (federation / "federation" / name).exists()


def test_nothing_that_is_shown_is_secret(tmp_path: Path) -> None:
    shown = "".join(done(*command, cwd=tmp_path) for command in FIRST)
    secrets = [line for key in tmp_path.rglob("*.key") for line in key.read_text().splitlines() if line[0] != "-"]
    public = b"".join(path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file() and path.suffix != ".key")
    assert len(secrets) == 3 * (3 + 2) + 2 * 3
    assert not any(secret in shown or secret.encode() in public for secret in secrets)


def test_a_fingerprint_that_was_read_out_must_be_that_of_the_request(federation: Path) -> None:
    made = json.loads(done("keys", "request", "dave.key", "--json", cwd=federation))
    wrong = refused("keys", "approve", "federation", "dave.request", "--fingerprint", "0000", cwd=federation)
    assert made["fingerprint"] in wrong
    two = ("dave.request", "alice.request")
    assert "one at a time" in refused("keys", "approve", "federation", *two, "--fingerprint", "0", cwd=federation)
    right = ("keys", "approve", "federation", "dave.request", "--fingerprint", made["fingerprint"], "--json")
    assert json.loads(done(*right, cwd=federation))["approved"][0]["client"] == 4


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("ca federation", "there is an authority or a file at federation already"),
        ("ca other --name a/b", "letters, digits"),
        ("request alice.key", "there is a key already"),
        ("request alice", "ends with .key"),
        ("request nowhere/dave.key", "cannot write"),
        ("request dave.key --server Ä", "no host name"),
        ("approve federation nobody.request", "cannot read the request"),
        ("approve federation alice.cert", "alice.cert: this is not a request"),
        ("approve nowhere alice.request", "cannot read"),
        ("approve federation double.request", "belong to client 1 ('alice')"),
        ("issue federation dave", "no certificate of 'dave'"),
        ("issue federation alice --days 0", "one day"),
        ("issue federation alice --to nowhere", "there is no directory"),
        ("revoke federation dave", "there is no member 'dave'"),
        ("rotate server.key server-2.key", "is a server's"),
        ("rotate dave.key dave-2.key", "cannot read the key file"),
        ("list nowhere", "cannot read the key file"),
        ("list open.key", "chmod 600"),
    ],
)
def test_a_mistake_is_refused_in_one_line(federation: Path, command: str, reason: str) -> None:
    if "double" in command:
        (federation / "alice.key").rename(federation / "old.key")
        stolen = PrivateKeys(new_tls_key(), load_keys(federation / "old.key").keys)
        (federation / "double.request").write_bytes(new_request("double", stolen))
    if "open" in command:
        (federation / "alice.key").rename(federation / "open.key")
        (federation / "open.key").chmod(0o644)
    assert reason in refused("keys", *command.split(), cwd=federation)
