"""Availability and dropout: exact rates, rates by stage, and traces of devices that the tests make up."""

import json
from collections import Counter

import msgspec
import numpy as np
import pytest

from dordis.dropout_models import (
    DropoutModel,
    DropoutSchedule,
    FedScale,
    Matrix,
    NoDropout,
    Rate,
    StageRates,
)
from dordis.errors import InputError
from dordis.protocol import requests_in
from dordis.protocols import delivery
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import Agree, CollectInput, PrepareInput, ShareKeys, Unmask
from dordis.rounds import invitation
from dordis.rounds.invitation import SendModel, Train

CLIENTS = range(100, 200)
STAGES = SECAGG.stages
SEED = bytes(range(32))


@pytest.fixture
def trace(tmp_path):
    """Write a trace of four devices: day and night, always, never, and every ten seconds."""
    devices = {
        "a": {"active": [0], "inactive": [500], "finish_time": 1000, "model": "x", "duration": 500},
        "b": {"active": [0.0], "inactive": [300.0], "finish_time": 300.0},
        "c": {"active": [], "inactive": [], "finish_time": 10},
        "d": {"active": [0, 20, 40], "inactive": [10, 30, 50], "finish_time": 60},
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(devices))
    return path


@pytest.fixture
def matrix(tmp_path):
    """Write a matrix of five slots and four devices."""
    path = tmp_path / "matrix.npz"
    slots = [[1, 1, 0, -1], [1, 0, 0, 1], [1, 1, 0, -1], [1, 1, 0, 1], [0, 1, 1, 1]]
    np.savez(path, avail=np.array(slots, np.int8), minutes=np.int32(30))
    return path


def device_of(dropout):
    """Return which of four clients is which device."""
    return {dropout.device(u): u for u in range(4)}


def test_without_dropout_everybody_is_there_and_stays():
    dropout = NoDropout().model(SEED, STAGES)
    assert dropout.available(3, CLIENTS) == frozenset(CLIENTS)
    assert dropout.leaving(3, CLIENTS) == {}


# Rates


@pytest.mark.parametrize(
    ("rate", "n", "leave"), [(0.2, 16, 3), (0.3, 10, 3), (0.29, 100, 29), (0.0, 9, 0), (1.0, 9, 9), (0.4, 1, 0)]
)
def test_exactly_the_floor_of_the_rate_leaves(rate, n, leave):
    dropout = Rate(rate).model(1, STAGES)
    for index in range(20):
        found = dropout.leaving(index, range(n))
        assert len(found) == leave
        assert found.keys() <= set(range(n))
        assert dropout.available(index, range(n)) == frozenset(range(n))


def test_everybody_leaves_equally_often_and_at_every_stage():
    dropout, who, when = Rate(0.2).model(SEED, STAGES), Counter(), Counter()
    for index in range(700):
        found = dropout.leaving(index, CLIENTS)
        who.update(list(found))
        when.update(found.values())
    assert set(who) == set(CLIENTS)
    assert all(abs(who[u] - 140) < 60 for u in CLIENTS)  # more than 5 standard deviations
    assert all(abs(when[stage] - 2000) < 250 for stage in STAGES)


def test_the_stages_can_be_chosen():
    dropout = Rate(0.5, ("Unmask", "CollectInput")).model(1, STAGES)
    assert set(dropout.leaving(0, CLIENTS).values()) == {"Unmask", "CollectInput"}


def test_the_stages_are_those_of_the_protocol_unless_some_are_chosen():
    assert set(Rate(1.0).model(1, ("Begin", "End")).leaving(0, CLIENTS).values()) == {"Begin", "End"}
    with pytest.raises(InputError, match="Invite, Train, Begin, End, not Unmask"):
        Rate(1.0, ("Unmask",)).model(1, ("Begin", "End"))


@pytest.mark.parametrize("settings", [Rate(1.0, ("Invite", "Train")), StageRates({"Invite": 0.5, "Train": 1.0})])
def test_clients_may_leave_before_the_protocol_begins(settings):
    assert set(settings.model(1, STAGES).leaving(0, CLIENTS).values()) == {"Invite", "Train"}


def test_at_each_stage_the_rate_is_that_of_the_stage():
    dropout, when = StageRates({"ShareKeys": 0.5, "Unmask": 0.2, "RemoveNoise": 1.0}).model(7, STAGES), Counter()
    for index in range(200):
        found = dropout.leaving(index, CLIENTS)
        assert found.keys() == set(CLIENTS)
        when.update(found.values())
    assert when.keys() == {"ShareKeys", "Unmask", "RemoveNoise"}
    assert abs(when["ShareKeys"] - 10_000) < 400
    assert abs(when["Unmask"] - 2_000) < 250  # a fifth of those who are still there
    assert StageRates({"Unmask": 0.0}).model(7, STAGES).leaving(0, CLIENTS) == {}


@pytest.mark.parametrize("settings", [Rate(0.3), StageRates({"CollectInput": 0.3, "Unmask": 0.3})])
def test_everything_follows_from_the_seed_and_the_index(settings):
    np.random.seed(0)  # noqa: NPY002
    first = settings.model(SEED, STAGES).leaving(4, CLIENTS)
    np.random.seed(1)  # noqa: NPY002
    assert settings.model(SEED, STAGES).leaving(4, reversed(CLIENTS)) == first
    assert settings.model(SEED, STAGES).leaving(5, CLIENTS) != first
    assert settings.model(bytes(32), STAGES).leaving(4, CLIENTS) != first
    assert settings.model(3, STAGES).leaving(4, CLIENTS) != settings.model(4, STAGES).leaving(4, CLIENTS)


@pytest.mark.parametrize("settings", [Rate(-0.1), Rate(1.1), Rate(float("nan")), StageRates({"Unmask": 2.0})])
def test_what_is_no_rate_is_refused(settings):
    with pytest.raises(InputError, match=r"0\.\.1"):
        settings.model(1, STAGES)


@pytest.mark.parametrize(
    "settings", [Rate(0.1, ("Lunch",)), Rate(0.1, ("Unmask", "")), StageRates({"Lunch": 0.1}), StageRates({})]
)
def test_what_is_no_stage_is_refused(settings):
    with pytest.raises(InputError, match="AdvertiseKeys"):
        settings.model(1, STAGES)


@pytest.mark.parametrize("seed", [-1, b"", bytes(31)])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(InputError, match="32 bytes"):
        Rate(0.5).model(seed, STAGES).leaving(0, CLIENTS)


# Traces


def test_a_device_of_a_behaviour_trace_is_there_while_it_is_active(trace):
    dropout = FedScale(str(trace), seconds=100, stage_seconds=10).model(SEED, STAGES)
    client = device_of(dropout)
    shown = [dropout.available(index, range(4)) for index in range(20)]
    assert [client[0] in there for there in shown] == ([True] * 6 + [False] * 4) * 2
    assert all(client[1] in there and client[2] not in there for there in shown)
    assert [client[3] in there for there in shown[:3]] == [True, True, True]  # at 0, 40 and 20 of its 60 seconds


def test_a_device_leaves_at_the_first_request_that_finds_it_inactive(trace):
    dropout = FedScale(str(trace), seconds=110, stage_seconds=15).model(SEED, STAGES)
    client = device_of(dropout)
    assert dropout.leaving(0, range(4)) == {client[2]: "AdvertiseKeys", client[3]: "ShareKeys"}
    assert dropout.leaving(4, [client[0]]) == {client[0]: "Unmask"}  # at 515; 500 is its last
    assert dropout.leaving(4, [client[1]]) == {}


def test_more_clients_than_devices_share_them(trace):
    dropout = FedScale(str(trace)).model(SEED, STAGES)
    assert Counter(dropout.device(u) for u in range(40)) == dict.fromkeys(range(4), 10)
    orders = {tuple(FedScale(str(trace)).model(seed, STAGES).device(u) for u in range(4)) for seed in range(20)}
    assert len(orders) > 5  # the seed shuffles


def test_a_device_of_a_matrix_leaves_if_it_is_not_there_in_the_next_slot(matrix):
    dropout = Matrix(str(matrix)).model(SEED, STAGES)
    client = device_of(dropout)
    shown = [{d for d in range(4) if client[d] in dropout.available(index, range(4))} for index in range(8)]
    assert shown == [{0, 1}, {0, 3}, {0, 1}, {0, 1, 3}] * 2  # the last slot has no next
    for index, gone in enumerate([{1}, {3}, set(), {0}] * 2):
        there = [client[d] for d in shown[index]]
        assert dropout.leaving(index, there).keys() == {client[d] for d in gone}
    assert dropout.leaving(0, [client[2]]) == {client[2]: "AdvertiseKeys"}


def test_devices_of_a_matrix_leave_at_any_stage(tmp_path):
    np.savez(tmp_path / "m.npz", avail=np.array([[1] * 500, [0] * 500]))
    found = Matrix(str(tmp_path / "m.npz")).model(SEED, STAGES).leaving(0, range(500))
    assert len(found) == 500
    assert Counter(found.values()).keys() == set(STAGES)


def test_a_matrix_may_have_its_devices_in_rows(matrix, tmp_path):
    turned = tmp_path / "turned.npz"
    np.savez(turned, there=np.load(matrix)["avail"].T)
    first, second = Matrix(str(matrix)).model(1, STAGES), Matrix(str(turned), "there", "devices").model(1, STAGES)
    for index in range(6):
        assert first.available(index, range(9)) == second.available(index, range(9))
        assert first.leaving(index, range(9)) == second.leaving(index, range(9))


def test_only_the_most_volatile_take_part(trace, matrix):
    always = FedScale(str(trace), volatile=1).model(SEED, STAGES)
    assert always.available(0, range(4)) == {device_of(always)[3]}  # six changes
    some = Matrix(str(matrix), volatile=2).model(SEED, STAGES)
    client = device_of(some)
    assert some.trace.changes == [1, 2, 1, 3]
    shown = [some.available(index, range(4)) for index in range(4)]
    assert shown == [{client[1]}, {client[3]}, {client[1]}, {client[1], client[3]}]
    assert some.leaving(1, [client[3]]).keys() == {client[3]}


# The settings and the files


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"kind": "none"}, NoDropout()),
        ({"kind": "rate"}, Rate(0.2)),
        ({"kind": "rate", "rate": 0.4, "stages": ["Unmask"]}, Rate(0.4, ("Unmask",))),
        ({"kind": "stages", "rates": {"Unmask": 0.1}}, StageRates({"Unmask": 0.1})),
        ({"kind": "fedscale", "path": "x.json", "volatile": 5}, FedScale("x.json", volatile=5)),
        ({"kind": "matrix", "path": "x.npz"}, Matrix("x.npz")),
    ],
)
def test_the_settings_are_read_by_their_kind(written, read):
    assert msgspec.convert(written, DropoutModel) == read


@pytest.mark.parametrize(
    "written",
    [
        {"kind": "sometimes"},
        {"kind": "none", "rate": 0.1},
        {"kind": "rate", "rate": 1.5},
        {"kind": "matrix"},
        {"kind": "matrix", "path": "x", "volatile": 0},
        {"kind": "fedscale", "path": "x", "seconds": 0},
    ],
)
def test_settings_that_are_none_are_refused(written):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(written, DropoutModel)


def test_the_stages_must_fit_into_a_round(trace):
    with pytest.raises(InputError, match="do not fit"):
        FedScale(str(trace), seconds=100, stage_seconds=20).model(1, STAGES)


BEHAVIOURS = {
    "no json": "{",
    "no text": b"\xff\xfe",
    "a list": "[1]",
    "no devices": "{}",
    "no times": '{"a": {"finish_time": 5}}',
    "a word": '{"a": {"active": ["x"], "inactive": [2], "finish_time": 5}}',
    "one less": '{"a": {"active": [1, 3], "inactive": [2], "finish_time": 5}}',
    "backwards": '{"a": {"active": [3], "inactive": [2], "finish_time": 5}}',
    "overlapping": '{"a": {"active": [0, 1], "inactive": [2, 3], "finish_time": 5}}',
    "before the start": '{"a": {"active": [-1], "inactive": [2], "finish_time": 5}}',
    "beyond the end": '{"a": {"active": [1], "inactive": [6], "finish_time": 5}}',
    "no time at all": '{"a": {"active": [], "inactive": [], "finish_time": 0}}',
}


@pytest.mark.parametrize("content", BEHAVIOURS.values(), ids=BEHAVIOURS.keys())
def test_what_is_no_behaviour_trace_is_refused(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=r"trace\.json"):
        FedScale(str(path)).model(1, STAGES)


MATRICES = {
    "one dimension": np.ones(5),
    "empty": np.ones((4, 0)),
    "another number": np.array([[1, 2], [0, 1]]),
    "no numbers": np.array([["a", "b"], ["c", "d"]]),
    "not a number": np.array([[1.0, np.nan], [0.0, 1.0]]),
    "objects": np.array([[1, None], [1, 1]], object),
    "one slot": np.ones((1, 5)),
}


@pytest.mark.parametrize("array", MATRICES.values(), ids=MATRICES.keys())
def test_what_is_no_matrix_of_availability_is_refused(tmp_path, array):
    np.savez(tmp_path / "m.npz", avail=array)
    with pytest.raises(InputError):
        Matrix(str(tmp_path / "m.npz")).model(1, STAGES)


def test_a_file_that_is_missing_or_something_else_is_refused(tmp_path, matrix):
    text, alone, cut = tmp_path / "text.npz", tmp_path / "alone.npy", tmp_path / "cut.npz"
    text.write_text("not an npz")
    np.save(alone, np.ones((3, 3)))
    cut.write_bytes(matrix.read_bytes()[:200])
    for path in (tmp_path / "missing.npz", tmp_path, text, alone, cut):
        with pytest.raises(InputError, match="cannot be read"):
            Matrix(str(path)).model(1, STAGES)
    with pytest.raises(InputError, match="no array 'here'"):
        Matrix(str(matrix), "here").model(1, STAGES)
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            FedScale(str(path)).model(1, STAGES)


INVITED = (1, 2, 3, 4)


class Script:
    """Some are there, and some of those leave."""

    def __init__(self, there=INVITED, **leaving):
        self.there, self.told = frozenset(there), {int(name[1:]): stage for name, stage in leaving.items()}
        self.asked = []

    def available(self, index, clients):
        self.asked.append(index)
        return self.there.intersection(clients)

    def leaving(self, index, clients):
        return {u: stage for u, stage in self.told.items() if u in clients}


def begun(protocol=SECAGG, **script):
    departures = DropoutSchedule(Script(**script), protocol)
    departures.begin(7, INVITED)
    return departures


def blank(kind):
    """Return a request of a kind; what is in it does not matter here."""
    return kind(*[0] * len(kind.__struct_fields__))


def all_requests(protocol):
    return (*requests_in(vars(invitation)), *protocol.requests, *requests_in(vars(delivery)))


@pytest.mark.parametrize("protocol", [SECAGG, PLAINTEXT], ids=lambda protocol: protocol.name)
def test_who_leaves_at_a_request_answers_it_no_more_nor_any_after_it(protocol):
    order = [kind for kind in all_requests(protocol) if not kind.ahead]
    for place, stage in enumerate(order):
        departures = begun(protocol, u2=stage.__name__)
        lost = [departures.lost(2, blank(kind)) for kind in order]
        assert lost == [False] * place + [True] * (len(order) - place)
        assert not any(departures.lost(1, blank(kind)) for kind in order)


def test_a_request_that_never_comes_is_passed_by():
    departures = begun(u2="Agree")
    assert not departures.lost(2, CollectInput(0))
    assert departures.lost(2, Unmask(0, b""))


def test_whoever_is_gone_stays_gone_in_every_chunk():
    departures = begun(u2="Agree")
    assert departures.lost(2, Agree(0, b"", b""))
    assert departures.lost(2, CollectInput(1))
    assert departures.lost(2, PrepareInput(1))


def test_working_ahead_is_no_request_to_leave_at():
    departures = begun(u2="CollectInput")
    assert not departures.lost(2, PrepareInput(0))
    assert departures.lost(2, CollectInput(0))


def test_whoever_is_not_there_leaves_at_once():
    departures = begun(there=(1, 3), u3="Unmask", u4="ShareKeys")
    assert departures.leaving == {2: "Invite", 3: "Unmask", 4: "Invite"}
    assert [departures.is_early(u) for u in INVITED] == [False, True, False, True]
    assert departures.lost(2, blank(invitation.Invite))


def test_a_client_may_leave_between_the_invitation_and_the_round():
    departures = begun(u1="Train")
    assert departures.is_early(1)
    assert not departures.lost(1, SendModel(0, b""))
    assert departures.lost(1, Train())


def test_every_round_begins_anew():
    script = Script(u2="ShareKeys")
    departures = DropoutSchedule(script, SECAGG)
    departures.begin(0, INVITED)
    assert departures.lost(2, ShareKeys({}))
    script.told = {3: "ShareKeys"}
    departures.begin(1, INVITED)
    assert not departures.lost(2, ShareKeys({}))
    assert departures.lost(3, ShareKeys({}))
    assert script.asked == [0, 1]


def test_who_is_there_is_asked_of_the_model():
    assert begun(there=(2, 3)).present(5, [1, 2]) == {2}
