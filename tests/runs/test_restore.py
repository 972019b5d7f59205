"""A client that is killed anywhere in a round, and restored from its directory, goes on in it as if nothing was."""

import itertools

import numpy as np
import pytest

from dordis import wire
from dordis.owner.directory import ClientDirectory
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import NoMechanism
from dordis.protocols.delivery import Store
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG
from dordis.rounds.model import ModelBytes
from tests.protocols.rounds import public_key, signing_key
from tests.rounds.parties import BLOCK, DIM, IDS, MODEL, SCALE, Federation, Member, Witness, agreed, invite_to
from tests.simulated_kills import Life

ME = 3
REGISTRY = {u: public_key(u) for u in IDS}
NO_NOISE = NoMechanism(Grid(DIM, BLOCK, SCALE, 24))
PLAIN = agreed(index=3, chunks=2, mechanism=NO_NOISE)
MASKED = agreed(index=3, chunks=2, mechanism=NO_NOISE, mode=MALICIOUS)


class CountingOwner(Witness):
    """An owner that counts in a file."""

    def __init__(self, directory):
        super().__init__([])
        self.participation = directory.participation(cap=1)

    def attend(self, parameters, machine):
        self.participation.reserve(parameters.run, parameters.index, machine)


def member_in(path, protocol=PLAINTEXT, opened=None):
    """Return a member whose files are in a directory; journals that it opens are added to a list."""
    directory, opened = ClientDirectory(path), [] if opened is None else opened

    def journals(round):
        opened.append(directory.journals(round))
        return opened[-1]

    return Member(
        ME,
        protocol,
        owner=CountingOwner(directory),
        journals=journals,
        models=directory.models,
        signing=signing_key(ME),
        registry=REGISTRY,
    )


class Mortal:
    """A party whose process is killed after so many calls to the disk, or before its reply to a request leaves.

    Then it is started again, restored, and sent the request once more, as a network does that had no reply.
    """

    def __init__(self, path, protocol, calls=10**9, replies=()):
        self.path, self.protocol, self.life, self.replies = path, protocol, Life(calls), replies
        self.opened = []
        self.member = member_in(path, protocol, self.opened)
        self.diary, self.restarts, self.handled, self.left_the_round = [], 0, 0, False

    def handle(self, request):
        reply = None
        with self.life.led():
            reply = self.member.client.handle(request)
        self.handled += 1
        if self.life.dead:
            self.life = Life(10**9)
            self.restart()
            assert not self.left_the_round or type(request) is Store
            return self.member.client.handle(request)
        if self.handled in self.replies:
            self.restart()
            if self.left_the_round:  # with the last request: whoever had no reply to it goes without
                assert type(request) is Store
            assert wire.encode(self.member.client.handle(request)) == wire.encode(reply)
        return reply

    def restart(self):
        """Start the process again."""
        self.restarts += 1
        self.diary += self.member.diary
        for journal in self.opened:
            journal.release()  # the kernel does that when a process ends
        self.member = member_in(self.path, self.protocol, self.opened)
        journals = ClientDirectory(self.path).journals
        self.left_the_round = any(not any(key.read_bytes()) for key in journals.directory.glob("*.key"))
        for round in journals.unfinished():
            self.member.client.restore(round)


def whole_round(protocol, parameters, mortal):
    """Run a round in which one client is mortal; everybody must be in the sum, once."""
    home = Federation.of(protocol)
    parties = {u: member.client for u, member in home.members.items()} | {ME: mortal}
    home.exchange._clients = parties
    home.gather(invite_to(parameters))
    outcome = home.sum(parameters, mechanism=NO_NOISE)
    assert not home.exchange.errors or mortal.left_the_round
    assert {output.survivors for output in outcome.outputs} == {IDS}
    expected = np.full(DIM, sum(IDS) / len(IDS) / 100)
    assert np.abs(outcome.aggregate.mean - expected).max() < 2 / SCALE
    directory = ClientDirectory(mortal.path)
    assert directory.participation().count() == 1
    assert directory.journals.unfinished() == ()


every_round = pytest.mark.parametrize(
    ("protocol", "parameters"), [(PLAINTEXT, PLAIN), (SECAGG, MASKED)], ids=["plaintext", "SecAgg"]
)


@every_round
def test_a_client_killed_before_each_of_its_replies_leaves_gives_the_same_bytes_every_time(
    protocol, parameters, tmp_path
):
    mortal = Mortal(tmp_path / "home", protocol, replies=range(10**9))
    whole_round(protocol, parameters, mortal)
    assert mortal.restarts == mortal.handled >= 12
    assert mortal.diary.count("prepare_data") == 1


@pytest.mark.slow
@every_round
def test_a_client_killed_once_before_any_of_its_replies_leaves_gives_the_same_bytes(protocol, parameters, tmp_path):
    for reply in itertools.count(1):
        mortal = Mortal(tmp_path / str(reply), protocol, replies=[reply])
        whole_round(protocol, parameters, mortal)
        if not mortal.restarts:
            break
    assert reply > 12


@pytest.mark.slow
@every_round
def test_a_client_killed_at_any_call_to_the_disk_goes_on_in_its_round(protocol, parameters, tmp_path):
    for calls in itertools.count():
        mortal = Mortal(tmp_path / str(calls), protocol, calls)
        whole_round(protocol, parameters, mortal)
        if not mortal.restarts:
            break
        assert mortal.restarts == 1
    assert calls > 40


def test_a_restarted_client_that_is_invited_again_is_restored_by_that(tmp_path):
    first = member_in(tmp_path)
    (accepted,) = first.handle(invite_to(PLAIN))
    first.client.stop()
    again = member_in(tmp_path)
    assert again.handle(invite_to(PLAIN)) == [accepted]
    assert "machine" not in repr(again.client.round)


def test_a_restarted_client_has_the_model_that_it_had(tmp_path):
    models = ClientDirectory(tmp_path).models
    models.keep(MODEL)
    again = ClientDirectory(tmp_path).models
    assert again.get(bytes(32)) is None
    assert again.get(MODEL.digest).data == MODEL.data
    other = ModelBytes.from_numbers([1.0, 2.0], "<f8")
    again.keep(other)
    assert ClientDirectory(tmp_path).models.get(MODEL.digest) is None
    assert ClientDirectory(tmp_path).models.get(other.digest).array.tolist() == [1.0, 2.0]
    (tmp_path / "model").write_bytes(b"no model")
    assert ClientDirectory(tmp_path).models.get(other.digest) is None
