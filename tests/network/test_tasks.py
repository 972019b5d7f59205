"""The signed task: only a server that the authority certified can make one, and nobody can change it."""

import msgspec
import pytest

from dordis import wire
from dordis.errors import DordisError, MalformedMessage
from dordis.identity.certificates import check_purpose, new_tls_key
from dordis.identity.keys import load_keys, load_server_credentials
from dordis.network.messages import (
    LARGEST_TASK,
    RoundTask,
    SignedTask,
    check_task_signed,
    opening_of,
    read_task,
    sign_task,
    task_tag,
)
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.plaintext import PLAINTEXT, Begin
from tests.adversary.test_mutations import take_out
from tests.network.test_authentication import NOW, Federation
from tests.rounds.parties import agreed, invite_to
from tests.runs.parties import joined

PARAMETERS = agreed()
TASK = RoundTask(invite_to(PARAMETERS), wire.encode(Begin(PARAMETERS)), 1_900_000_000)


@pytest.fixture
def federation(tmp_path):
    federation = Federation(tmp_path)
    joined(federation.authority, tmp_path / "signing.key", hosts=("localhost",))
    return federation


def signed(federation, task=TASK):
    """Sign a task as a server of the federation."""
    path = federation.path / "signing.key"
    return sign_task(task, load_keys(path).tls, load_server_credentials(path, NOW).certificate)


def read(federation, document):
    return read_task(document, federation.authority.certificate, NOW)


def test_a_client_reads_the_task_that_a_server_signed(federation):
    assert read(federation, signed(federation)) == TASK


def test_the_opening_of_a_task_is_that_of_the_protocol():
    assert opening_of(TASK, PLAINTEXT) == Begin(PARAMETERS)
    with pytest.raises(MalformedMessage):
        opening_of(TASK, ASSISTED)


def test_documents_have_tags_of_their_own(federation):
    other = msgspec.structs.replace(TASK, closes=TASK.closes + 1)
    assert task_tag(signed(federation, TASK)) != task_tag(signed(federation, other))


def altered(federation):
    """Have the round closed at another time, under the old signature."""
    document = wire.decode(signed(federation), SignedTask)
    other = msgspec.structs.replace(TASK, closes=0)
    return wire.encode(msgspec.structs.replace(document, task=wire.encode(other)))


def made_by_a_stranger(federation):
    """Sign a task with another key than that of the server's certificate, which is public."""
    certificate = load_server_credentials(federation.path / "signing.key", NOW).certificate
    return sign_task(msgspec.structs.replace(TASK, closes=0), new_tls_key(), certificate)


def made_by_a_client(federation):
    """Sign a task as a member, who is no server."""
    own = federation.client()
    return sign_task(msgspec.structs.replace(TASK, closes=0), load_keys(own.key_file).tls, own.certificate)


@pytest.mark.parametrize(
    ("attack", "check"),
    [(altered, check_task_signed), (made_by_a_stranger, check_task_signed), (made_by_a_client, check_purpose)],
)
def test_a_false_task_is_refused_and_read_once_the_check_is_taken_out(federation, monkeypatch, attack, check):
    document = attack(federation)
    with pytest.raises(DordisError):
        read(federation, document)
    take_out(monkeypatch, f"{check.__module__}.{check.__qualname__}")
    assert read(federation, document).closes == 0


def test_a_task_of_another_federation_is_refused(federation, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    other = Federation(tmp_path / "elsewhere")
    joined(other.authority, other.path / "signing.key", hosts=("localhost",))
    with pytest.raises(DordisError, match="another federation"):
        read(federation, signed(other))


def test_a_longer_document_is_not_read(federation):
    with pytest.raises(MalformedMessage, match="exceeds the limit"):
        read(federation, bytes(LARGEST_TASK + 1))
