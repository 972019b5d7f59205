"""The set-up of a helper: its policy, how long it keeps keys, and what it remembers across a restart."""

import asyncio
from fractions import Fraction
from types import SimpleNamespace

import msgspec
import pytest

from dordis.crypto import vrf
from dordis.errors import (
    BeaconNotPublished,
    InputError,
    InvalidProof,
    MalformedMessage,
    ParametersRefused,
    ProtocolError,
)
from dordis.network.client_transfers import Address
from dordis.network.helper_directory import BoxJournal, FileHelperStore, ServedRounds
from dordis.network.helper_setup import (
    Assistant,
    JournaledHelper,
    check_key_days,
    check_named,
    key_lifetime,
    read_policy,
    run_selection,
)
from dordis.protocol import ClientId
from dordis.protocols.assisted.helper import KEYS_AHEAD, AssistedHelper, HelperPolicy
from dordis.protocols.assisted.messages import AgreeOnSurvivors, Entry, Introduce, OpenBoxes
from dordis.protocols.parameters import pack_words
from dordis.records.manifest import Manifest
from dordis.runs.job import prepare
from dordis.runs.run import manifest_of
from dordis.selection.beacon import FileBeacon
from dordis.selection.selection import BalancedSelection
from dordis.selection.vrf_selection import VrfSelection, vrf_number
from tests.network.assisted_run import assisted_keys
from tests.network.process_roles import Total, settings
from tests.network.test_client_setup import CREATED, lines
from tests.network.test_population import FixedPopulation
from tests.protocols.assisted import parties
from tests.protocols.assisted.parties import ROUND, RUN, Round
from tests.runs.cohorts import keys_of, registry_of

LATER = "2040-01-01T00:00:00Z"


def manifest(*keys: str) -> Manifest:
    """Return the manifest of a run with helpers 7 to 10."""
    given = ["federation.clients=6", "app.options.dim=1000", *assisted_keys(6, 5, 3), *keys]
    return manifest_of(prepare(settings(given), Total(1000)), FixedPopulation(), "2030-01-01T00:00:00Z")


def test_keys_are_kept_as_long_as_the_rounds_ahead_may_stay_open_and_a_day():
    assert key_lifetime(manifest()) == 4 * 3600 + 86400
    extended = "federation.closing={seconds=7200.0, extensions=2}"
    assert key_lifetime(manifest(extended)) == 4 * 3 * 7200 + 86400


@pytest.mark.parametrize("closing", ["a day", {"seconds": -1.0}, {"seconds": 1.0, "days": 1}])
def test_a_manifest_without_a_valid_closing_time_is_malformed(closing):
    given = manifest()
    config = given.config | {"federation": given.config["federation"] | {"closing": closing}}
    with pytest.raises(MalformedMessage, match="no valid section 'federation'"):
        key_lifetime(msgspec.structs.replace(given, config=config))


def test_a_server_cannot_have_keys_kept_for_longer_than_the_policy_says():
    check_key_days(30 * 86400, 30)
    with pytest.raises(ParametersRefused, match="line 'key_days'"):
        check_key_days(key_lifetime(manifest("federation.closing={seconds=1e300}")), 30)


def test_a_helper_that_the_run_does_not_name_refuses_it():
    check_named(7, (7, 8))
    with pytest.raises(ParametersRefused, match="does not name 9"):
        check_named(9, (7, 8))


MEMBERS = registry_of(*range(1, 7))


def test_with_open_arrival_a_helper_opens_the_boxes_of_any_member():
    selection = run_selection(manifest(), MEMBERS, RUN, None)
    for u in MEMBERS:
        selection.verify_client(0, u, b"")


def test_a_helper_knows_from_the_manifest_who_is_scheduled():
    selection = run_selection(manifest("federation.arrival=invited"), MEMBERS, RUN, None)
    for index in range(4):
        window = BalancedSelection(MEMBERS, RUN, 5, 1).window(index)
        for u in window:
            selection.verify_client(index, u, b"")
        (other,) = MEMBERS.keys() - window
        with pytest.raises(ProtocolError, match=f"client {other} contributes to round {index}, for which it is not"):
            selection.verify_client(index, other, b"")


def test_a_helper_verifies_lots_with_its_own_copy_of_the_beacon(tmp_path):
    path = tmp_path / "published.txt"
    path.write_text(lines(1, 5))
    drawn = msgspec.structs.replace(
        manifest("federation.arrival=invited", "federation.selection=vrf"), created=CREATED, first_line=1
    )
    with pytest.raises(InputError, match="pass the file with --beacon"):
        run_selection(drawn, MEMBERS, RUN, None)
    selection, keys = run_selection(drawn, MEMBERS, RUN, FileBeacon(path)), keys_of(ClientId(1))
    alpha = VrfSelection(MEMBERS, RUN, Fraction(5), 1, FileBeacon(path, first=1)).alpha(3)
    other = VrfSelection(MEMBERS, RUN, Fraction(5), 1, FileBeacon(path, first=0)).alpha(3)
    proof = vrf.prove(keys.vrf, alpha)
    assert vrf_number(proof) < selection.threshold
    selection.verify_client(3, ClientId(1), proof)
    with pytest.raises(InvalidProof):
        selection.verify_client(3, ClientId(1), vrf.prove(keys.vrf, other))
    with pytest.raises(BeaconNotPublished, match="update the file"):
        selection.verify_client(4, ClientId(1), proof)
    with pytest.raises(ProtocolError, match="not later than the run's manifest"):
        run_selection(msgspec.structs.replace(drawn, created=LATER), MEMBERS, RUN, FileBeacon(path)).verify_client(
            0, ClientId(1), proof
        )


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

    def start(self, run=RUN):
        helper = AssistedHelper(
            ClientId(1), secret=parties.secret(b"helper", 1), registry=self.round.registry, clock=lambda: parties.NOW,
            store=FileHelperStore(self.path / "values", self.path / "h.count"), run=run,
        )  # fmt: skip
        boxes, served = BoxJournal(self.path / "boxes"), ServedRounds(self.path / "rounds")
        journaled = JournaledHelper(helper, boxes, served, self.rounds_a_day)
        journaled.restore(run)
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
    restarted = RestartedHelper(tmp_path, rounds_a_day=1)
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(ParametersRefused, match="rounds_a_day"):
        restarted.start().handle(Introduce(RUN + (parties.INDEX + 1).to_bytes(8, "big")))
    assert sorted(tmp_path.rglob("*")) == files  # else a server could fill the disk with keys
    assert restarted.start().handle(restarted.boxes()).named == b""


@pytest.mark.parametrize("round", [bytes([1]) * 32 + bytes(8), RUN, RUN + bytes(100_000), RUN + b"\xff" * 8])
def test_a_helper_stores_nothing_for_rounds_of_another_run_or_none(tmp_path, round):
    restarted = RestartedHelper(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for request in (Introduce(round), AgreeOnSurvivors(round, b"")):
        with pytest.raises((ParametersRefused, MalformedMessage), match=r"another run|round id"):
            restarted.start().handle(request)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_boxes_that_a_helper_cannot_verify_are_not_stored(tmp_path):
    restarted = RestartedHelper(tmp_path)
    request = restarted.boxes()
    helper = restarted.start()
    helper.handle(request)
    (stored,) = tmp_path.glob("boxes/*")
    before = stored.read_bytes()
    keys = dict(request.parameters.helpers)
    keys[1] = msgspec.structs.replace(keys[1], epoch=99)  # a key that the helper does not have
    junk = {u: msgspec.structs.replace(entry, box=bytes(10_000)) for u, entry in request.entries.items()}
    later = msgspec.structs.replace(request.parameters, helpers=keys, round=RUN + (9).to_bytes(8, "big"))
    assert helper.handle(OpenBoxes(later, junk)).unable
    assert [path.read_bytes() for path in tmp_path.glob("boxes/*")] == [before]


def test_expired_keys_are_erased_although_no_server_is_there(tmp_path, monkeypatch):
    restarted = RestartedHelper(tmp_path)
    store = FileHelperStore(tmp_path / "values", tmp_path / "h.count")
    assert len(store.keys("epoch/")) == KEYS_AHEAD
    erased = asyncio.Event()

    def open_store():
        return store

    async def pause(seconds):
        erased.set()
        await asyncio.Event().wait()

    async def wait():
        assistant = Assistant(Address("localhost", 1), None, SimpleNamespace(open_store=open_store))
        task = asyncio.ensure_future(assistant._erase_expired())
        await erased.wait()
        task.cancel()

    monkeypatch.setattr("dordis.network.helper_setup.asyncio.sleep", pause)
    asyncio.run(wait())
    assert restarted.start().handle(restarted.boxes()).unable


def test_a_restarted_helper_shows_the_key_that_it_showed_before(tmp_path):
    restarted = RestartedHelper(tmp_path)
    shown = restarted.start().handle(Introduce(ROUND))
    assert shown.keys[parties.INDEX] == restarted.round.parameters.helpers[1]


def test_a_helper_joins_another_run_with_the_boxes_of_the_last_one_on_its_disk(tmp_path):
    started = RestartedHelper(tmp_path)
    started.start().handle(started.boxes())
    assert not started.start(run=bytes([1]) * 32).helper._rounds
    assert started.start().helper._rounds


def test_boxes_that_are_refused_after_a_restart_lose_the_round_and_not_the_helper(tmp_path, caplog):
    """For example because their client was revoked since."""
    started = RestartedHelper(tmp_path)
    started.start().handle(started.boxes())
    started.round.registry = {u: key for u, key in started.round.registry.items() if u != ClientId(1)}
    started.start()
    assert "the boxes of an earlier round stay closed" in caplog.text
