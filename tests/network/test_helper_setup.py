"""The set-up of a helper: its policy, how long it keeps keys, and what it remembers across a restart."""

import pytest

from dordis.errors import ParametersRefused, ProtocolError
from dordis.network.helper_setup import JournaledHelper, check_named, key_lifetime, read_policy
from dordis.network.helper_state import BoxJournal, FileHelperStore, ServedRounds
from dordis.protocol import ClientId
from dordis.protocols.assisted.helper import AssistedHelper, HelperPolicy
from dordis.protocols.assisted.messages import AgreeOnSurvivors, Entry, Introduce, OpenBoxes
from dordis.protocols.parameters import pack_words
from dordis.records.manifest import Manifest
from dordis.runs.job import prepare
from dordis.runs.run import manifest_of
from tests.network.assisted_run import assisted_keys
from tests.network.process_roles import Total, settings
from tests.network.test_population import FixedPopulation
from tests.protocols.assisted import parties
from tests.protocols.assisted.parties import ROUND, Round


def manifest(*keys: str) -> Manifest:
    """Return the manifest of a run with helpers 7 to 10."""
    given = ["federation.clients=6", "app.options.dim=1000", *assisted_keys(6, 5, 3), *keys]
    return manifest_of(prepare(settings(given), Total(1000)), FixedPopulation(), "2030-01-01T00:00:00Z")


def test_keys_are_kept_as_long_as_the_rounds_ahead_may_stay_open_and_a_day():
    assert key_lifetime(manifest()) == 4 * 3600 + 86400
    extended = "federation.closing={seconds=7200.0, extensions=2}"
    assert key_lifetime(manifest(extended)) == 4 * 3 * 7200 + 86400


def test_a_helper_that_the_run_does_not_name_refuses_it():
    check_named(7, (7, 8))
    with pytest.raises(ParametersRefused, match="does not name 9"):
        check_named(9, (7, 8))


def test_a_policy_has_the_defaults_of_what_it_leaves_out(tmp_path):
    (tmp_path / "policy.toml").write_text("clients = 50\nfaulty = 2\nhelpers = [7, 8]\nrounds_a_day = 3\n")
    expected = HelperPolicy(clients=50, faulty=2, helpers=frozenset({7, 8}), rounds_a_day=3)
    assert read_policy(tmp_path / "policy.toml") == expected
    assert read_policy(None) == HelperPolicy()


class RestartedHelper:
    """Helper 1 of a round, made anew from its directory as often as it is asked for."""

    def __init__(self, path, rounds_a_day=10):
        self.path, self.round, self.rounds_a_day = path, Round(), rounds_a_day
        self.round.helpers[ClientId(1)] = self.start()
        self.round.parameters = self.round.agree()

    def start(self):
        helper = AssistedHelper(
            ClientId(1), secret=parties.secret(b"helper", 1), registry=self.round.registry, clock=lambda: parties.NOW,
            store=FileHelperStore(self.path / "values", self.path / "h.count"),
        )  # fmt: skip
        boxes, served = BoxJournal(self.path / "boxes"), ServedRounds(self.path / "rounds")
        journaled = JournaledHelper(helper, boxes, served, self.rounds_a_day)
        journaled.restore()
        return journaled

    def boxes(self):
        """Return the request to open the boxes of all clients."""
        server, parameters = self.round.server(), self.round.parameters
        request = next(iter([parties.SendContribution(parameters)]))
        came = {u: client.handle(request) for u, client in self.round.clients.items()}
        split = server.setup._split_boxes
        entries = {int(u): Entry(c.header, c.signature, split(c)[ClientId(1)]) for u, c in came.items()}
        return OpenBoxes(parameters, entries)


def test_a_helper_that_restarts_after_it_opened_boxes_signs_u3_and_no_other(tmp_path):
    restarted = RestartedHelper(tmp_path)
    request = restarted.boxes()
    assert restarted.start().handle(request).named == b""
    u3 = AgreeOnSurvivors(ROUND, pack_words(sorted(request.entries)))
    signed = restarted.start().handle(u3)
    assert restarted.start().handle(u3) == signed
    with pytest.raises(ProtocolError, match="another U3"):
        restarted.start().handle(AgreeOnSurvivors(ROUND, pack_words(sorted(request.entries)[:-1])))


def test_a_helper_serves_in_no_more_new_rounds_a_day_than_its_policy_says(tmp_path):
    restarted = RestartedHelper(tmp_path, rounds_a_day=0)
    with pytest.raises(ParametersRefused, match="rounds_a_day"):
        restarted.start().handle(restarted.boxes())
    assert not list(tmp_path.glob("boxes/*"))


def test_a_restarted_helper_shows_the_key_that_it_showed_before(tmp_path):
    restarted = RestartedHelper(tmp_path)
    shown = restarted.start().handle(Introduce(ROUND))
    assert shown.keys[parties.INDEX] == restarted.round.parameters.helpers[1]
