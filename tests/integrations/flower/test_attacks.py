"""What a malicious SuperLink, or a lying node, may try under Flower: refused, and a success without the check.

Nobody adds noise here, so that whatever is isolated shows in the sum as it is.
"""

import msgspec
import numpy as np
import pytest

from dordis.errors import DordisError, RoundFailed
from dordis.owner.participation import FileParticipation
from dordis.protocols.secagg.messages import CollectInput, DeliverShares, EncryptedShares, SharesDelivered
from dordis.records.run_records import read_evictions

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("deployed")]

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod, exchange
from dordis.integrations.flower import population as home
from dordis.integrations.flower.exchange import following_requests
from dordis.integrations.flower.messages import RECORD, digest_content, digest_training, from_record, seal, to_record
from dordis.integrations.flower.pins import TRAIN_SECONDS
from tests.integrations.flower.apps import (
    NO_NOISE,
    SHAPES,
    MemoryGrid,
    client_app,
    model,
    pin,
    record_of,
    update,
    vector,
)

CLIENTS, VICTIM = 6, 2
CLOSE = 1e-3
FLOWER = "dordis.integrations.flower"


def nothing(*arguments):
    """Stand for a check that was taken out."""


@pytest.fixture(params=[True, False], ids=["with the check", "without it"])
def checked(request):
    return request.param


@pytest.fixture
def take_out(monkeypatch, checked):
    """Take checks out, or leave them in."""

    def replace(*names, by=nothing):
        if not checked:
            for name in names:
                monkeypatch.setattr(f"{FLOWER}.{name}", by)

    return replace


@pytest.fixture
def pins(tmp_path):
    return pin(tmp_path, CLIENTS)


def learner(*mods) -> ClientApp:
    """Return an app whose update is as long as the config, or the run config, says."""
    app = ClientApp(mods=[*mods, DordisMod(NO_NOISE)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rate = message.content["config"].get("lr", 1.0) * context.run_config.get("lr", 1.0)
        change = rate * update(int(context.node_config["partition-id"]))
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        weight = int(np.prod(SHAPES["weight"]))
        arrays["weight"] = arrays["weight"] + change[:weight].reshape(SHAPES["weight"])
        arrays["bias"] = arrays["bias"] + change[weight:]
        content = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return app


def settings(folder, **more) -> dict:
    tried = {"federation.rounds": 1, "federation.tries": 1}
    return {"output": str(folder / "runs"), "privacy.noise.kind": "none", **tried} | more


def summed(grid, folder, registry, config=None, **more) -> tuple[np.ndarray, DordisGrid]:
    """Run a round; return the mean of the updates, and the grid."""
    private = DordisGrid(grid, settings(folder, **more), registry=registry)
    result = FedAvg().start(private, model(), num_rounds=1, train_config=ConfigRecord(config or {}))
    return vector(result.arrays) - vector(model()), private


class TellingApart(MemoryGrid):
    """A SuperLink that gives the victim a config of its own, under the invitation that all nodes get."""

    own: ConfigRecord | None = None

    def carry(self, place: int, content: RecordDict) -> RecordDict:
        """Return what a node gets."""
        if place == VICTIM and self.own is not None and "config" in content.config_records:
            return RecordDict({**content, "config": self.own})
        return content


def check_isolated(mean: np.ndarray, isolated: bool) -> None:
    """The sum is the victim's update and nothing else; or everybody trained alike, but for the victim, which left."""
    others = [place for place in range(CLIENTS) if place != VICTIM]
    if isolated:
        assert np.abs(CLIENTS * mean - update(VICTIM)).max() < CLOSE
    else:
        assert min(np.abs(len(others) * mean - rate * sum(map(update, others))).max() for rate in (0, 1)) < CLOSE


def only_arrays(content: RecordDict) -> bytes:
    """Return a digest of the model alone, as there was one before."""
    return hashed_as_before(RecordDict({name: record for name, record in content.items() if is_model(record)}))


hashed_as_before = digest_content


def is_model(record: object) -> bool:
    """Tell whether a record is one of arrays."""
    return isinstance(record, ArrayRecord)


def test_a_config_record_of_its_own_isolates_no_node(tmp_path, pins, checked, take_out):
    take_out("messages.digest_content", by=only_arrays)
    grid = TellingApart([learner()] * CLIENTS, pins[1])
    grid.own = ConfigRecord({"lr": 1.0})
    mean, _ = summed(grid, tmp_path, pins[0], {"lr": 0.0})
    check_isolated(mean, not checked)


def test_a_run_config_of_its_own_isolates_no_node(tmp_path, pins, checked, take_out, monkeypatch):
    take_out("mod.digest_environment", "messages.digest_environment", by=lambda context: bytes(32))
    monkeypatch.setattr(home, "check_same_environment", nothing)  # the server's own, which it does without
    grid = MemoryGrid([learner()] * CLIENTS, pins[1], run_config=lambda place: {"lr": float(place == VICTIM)})
    mean, _ = summed(grid, tmp_path, pins[0])
    check_isolated(mean, not checked)


def test_an_invitation_to_the_empty_model_isolates_no_node(tmp_path, pins, checked, take_out, monkeypatch, caplog):
    take_out("mod.check_invitation_names")
    take_out("mod.FlowerApp.form", by=lambda self: None)
    monkeypatch.setattr(home.FlowerModel, "model", lambda self: np.zeros(0))
    grid = TellingApart([learner()] * CLIENTS, pins[1])
    grid.own = ConfigRecord({"lr": 1.0})
    if checked:
        with pytest.raises(RoundFailed):
            summed(grid, tmp_path, pins[0], {"lr": 0.0})
        assert "names another digest" in caplog.text
    else:
        check_isolated(summed(grid, tmp_path, pins[0], {"lr": 0.0})[0], isolated=True)


class TrainingLater(MemoryGrid):
    """A SuperLink that sends the request to train after the invitation, and with it a config of the victim's own."""

    def carry(self, place: int, content: RecordDict) -> RecordDict:
        """Return what a node gets."""
        kinds = [msgspec.msgpack.decode(frame[1:])["type"] for frame, _ in from_record(content)[0]]
        if "Invite" in kinds:
            self.named = {name: record for name, record in content.items() if name != RECORD}
        if "Train" not in kinds:
            return content
        own = {"config": ConfigRecord({"lr": 1.0})} if place == VICTIM else {}
        return RecordDict({**content, **self.named, **own})


def test_a_later_request_to_train_isolates_no_node(tmp_path, pins, checked, monkeypatch):
    monkeypatch.setattr(exchange, "following_requests", lambda request: ())
    if not checked:
        monkeypatch.setattr("dordis.rounds.catch_up.check_model", nothing)
    mean, _ = summed(TrainingLater([learner()] * CLIENTS, pins[1]), tmp_path, pins[0], {"lr": 0.0})
    check_isolated(mean, not checked)


class Renaming(MemoryGrid):
    """A SuperLink that has the victim run another handler, or tells it another round, by the metadata of a message."""

    change: tuple[str, str] = ("", "")

    def _push(self, message: Message) -> str:
        place = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if place == VICTIM and "arrays" in message.content:
            message.metadata.__dict__[self.change[0]] = self.change[1]
        return super()._push(message)


@pytest.mark.parametrize("change", [("_group_id", "7"), ("_message_type", "train.other")])
def test_metadata_of_its_own_isolate_no_node(tmp_path, pins, checked, monkeypatch, change, caplog):
    if not checked:
        monkeypatch.setattr(
            "dordis.integrations.flower.messages.digest_training",
            lambda content, environment, *rest: numbers_as_before(content, environment),
        )
    app = learner()

    @app.train("other")
    def other(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid = Renaming([app] * CLIENTS, pins[1])
    grid.change = change
    mean, _ = summed(grid, tmp_path, pins[0])
    assert ("names another digest" in caplog.text) is checked
    if change[0] == "_message_type":  # the victim's is missing in a sum that counts it, or it left
        others = sum(update(place) for place in range(CLIENTS) if place != VICTIM)
        assert np.abs((CLIENTS - checked) * mean - others).max() < CLOSE


numbers_as_before = digest_training


def test_a_run_is_not_described_anew_with_a_cohort_of_two(tmp_path, pins, checked, take_out):
    """A second description in the same run of Flower would have the victim and one colluder summed alone."""
    take_out("mod.check_first_description", "mod.check_cohort_pinned")
    if not checked:  # the first description is on the disk, and the new one takes its place
        from dordis.integrations.flower.state import FileState

        keep = FileState.keep_description
        take_out("state.FileState.keep_description", by=lambda self, new: (forget(self), keep(self, new)))
    grid = MemoryGrid([learner()] * CLIENTS, pins[1])
    summed(grid, tmp_path, pins[0])
    check_pair_summed(grid, tmp_path, pins[0], succeeds=not checked)


def forget(state) -> None:
    (state.path / f"description-{state.run}").unlink(missing_ok=True)


def test_the_cohort_of_another_run_is_the_owners_too(tmp_path, pins, checked, take_out):
    """A new run of Flower may have a description of its own, and not a cohort of its own."""
    take_out("mod.check_cohort_pinned")
    summed(MemoryGrid([learner()] * CLIENTS, pins[1]), tmp_path, pins[0])
    check_pair_summed(MemoryGrid([learner()] * CLIENTS, pins[1], run=2), tmp_path, pins[0], succeeds=not checked)


def check_pair_summed(grid, folder, registry, *, succeeds) -> None:
    """A round of two clients is summed, from which either of them can tell what the other added; or it fails."""
    pair = {"federation.per_round": 2, "protocol.colluders": 0, "protocol.threshold": 2, "protocol.tolerance": 0}
    apart = DordisMod(msgspec.structs.replace(NO_NOISE, colluders=0))
    grid._apps = dict.fromkeys(grid.contexts, client_app([apart]))
    if not succeeds:
        with pytest.raises(RoundFailed):
            summed(grid, folder, registry, **pair)
        return
    mean, private = summed(grid, folder, registry, **pair)
    first, second = msgspec.json.decode((private.path / "rounds.jsonl").read_bytes().splitlines()[0])["clients"]
    assert np.abs(2 * mean - update(first - 1) - update(second - 1)).max() < CLOSE


class Recording(MemoryGrid):
    """A SuperLink that keeps the messages of the victim, to deliver them again."""

    def carry(self, place: int, content: RecordDict) -> RecordDict:
        """Return what a node gets, and keep that of the victim."""
        if place == VICTIM:
            self.kept = [*getattr(self, "kept", []), content]
        return content

    def again(self) -> list[tuple[list, str]]:
        """Deliver the first messages of the victim again, up to the keys; return what it answers."""
        node = list(self.contexts)[VICTIM]
        replies = [self.send_and_receive([Message(content, node, "train")]) for content in self.kept[:3]]
        return [from_record(reply.content) for (reply,) in replies]


def test_a_node_that_is_stopped_after_a_reply_gives_no_second_answer(tmp_path, pins, checked, take_out):
    """Flower stores a context after the reply: a node whose state is nowhere else answers twice, differently."""
    take_out("pins.Pins.state", by=lambda self: None)
    grid = Recording([learner()] * CLIENTS, pins[1], forget=checked)
    summed(grid, tmp_path, pins[0])
    once = grid.again()
    for context in grid.contexts.values():
        context.state = RecordDict()  # the process was killed before Flower had stored it
    twice = grid.again()
    assert [len(sealed) for sealed, _ in twice] == [
        1,
        3,
        1,
    ]  # keys; description, invitation, training; keys of the round
    assert (once[2] == twice[2]) is checked


def test_another_run_of_flower_is_no_new_budget(tmp_path, pins, checked, monkeypatch):
    if not checked:
        monkeypatch.setattr("dordis.integrations.flower.state.FileState.participation", forgetful)
    once = DordisMod(msgspec.structs.replace(NO_NOISE, participations=1))
    summed(MemoryGrid([client_app([once])] * CLIENTS, pins[1]), tmp_path, pins[0])
    again = MemoryGrid([client_app([once])] * CLIENTS, pins[1], run=2)
    if checked:
        with pytest.raises(RoundFailed):
            summed(again, tmp_path, pins[0])
    else:
        summed(again, tmp_path, pins[0])


def forgetful(state):
    """Count in the run of Flower alone, as there was no file before."""
    return FileParticipation(state.path / f"participations-{state.run}")


def test_a_node_of_nobody_takes_no_part_against_a_malicious_server(tmp_path, checked, take_out):
    take_out("mod.check_pinned_or_simulated")
    grid = MemoryGrid([learner()] * CLIENTS, {place: {TRAIN_SECONDS: 1} for place in range(CLIENTS)})
    if checked:
        with pytest.raises(DordisError, match="set dordis-keys and dordis-registry"):
            summed(grid, tmp_path, None)
    else:
        mean, _ = summed(grid, tmp_path, None)
        assert np.abs(CLIENTS * mean - sum(map(update, range(CLIENTS)))).max() < CLOSE


def test_a_node_whose_training_shows_when_it_ends_takes_no_part(tmp_path, pins, checked, take_out):
    take_out("mod.check_time_fixed")
    for settings_of_node in pins[1].values():
        del settings_of_node[TRAIN_SECONDS]
    grid = MemoryGrid([learner()] * CLIENTS, pins[1])
    if checked:
        with pytest.raises(DordisError, match="training must take a fixed time: set dordis-train-seconds"):
            summed(grid, tmp_path, pins[0])
    else:
        mean, _ = summed(grid, tmp_path, pins[0])
        assert np.abs(CLIENTS * mean - sum(map(update, range(CLIENTS)))).max() < CLOSE


def lying(reply_to_kind, lie):
    """Return a mod of the victim's that answers a kind of request with something else."""

    def mod(message, context, call_next):
        frames, _ = from_record(message.content)
        kinds = [msgspec.msgpack.decode(frame[1:])["type"] for frame, _ in frames]
        reply = call_next(message, context)
        if context.node_config["partition-id"] == VICTIM and reply_to_kind.__name__ in kinds:
            return Message(RecordDict({RECORD: lie(reply)}), reply_to=message)
        return reply

    return mod


@pytest.mark.parametrize(
    "garbage",
    [
        to_record([(b"\x01garbage", b"")]),
        ConfigRecord({"count": -1}),
        ConfigRecord({"count": 1, "0": "text"}),
        to_record([seal(EncryptedShares({}, b"", b""))]),
    ],
    ids=["no message", "no record", "no bytes", "another message"],
)
def test_a_node_that_answers_with_garbage_is_evicted(tmp_path, pins, checked, monkeypatch, garbage):
    if not checked:
        monkeypatch.setattr(exchange, "blame_garbage", lambda asked, answers: {})
    grid = MemoryGrid([learner(lying(DeliverShares, lambda reply: garbage))] * CLIENTS, pins[1])
    _, private = summed(grid, tmp_path, pins[0])
    evicted = [u for line in read_evictions(private.path / "evictions.jsonl") for u in line.clients]
    assert evicted == ([VICTIM + 1] if checked else [])


def test_an_accusation_costs_nobody_a_participation(tmp_path, pins, checked, monkeypatch):
    """One node that accuses another ends the round, which is tried again without both: others count one of the two."""
    if not checked:  # as it was: the request for the upload came with the delivered shares

        def with_upload(request):
            return (CollectInput(0),) if isinstance(request, DeliverShares) else following_requests(request)

        monkeypatch.setattr(exchange, "following_requests", with_upload)
    accusing = to_record([seal(SharesDelivered(bytes([1])))])
    grid = MemoryGrid([learner(lying(DeliverShares, lambda reply: accusing))] * CLIENTS, pins[1])
    _, private = summed(grid, tmp_path, pins[0])
    evicted = {u for line in read_evictions(private.path / "evictions.jsonl") for u in line.clients}
    assert evicted == {1, VICTIM + 1}
    counts = [FileParticipation(path).count() for path in sorted((tmp_path / "state").glob("*/participations"))]
    assert (sum(counts) == CLIENTS - len(evicted)) is checked


def overwrite(message, context, call_next):
    """A mod of the app that puts the trained arrays into the message that it was given."""
    reply = call_next(message, context)
    for name, array in reply.content["arrays"].items():
        message.content["arrays"][name] = array
    return reply


def test_an_app_that_changes_its_message_in_place_has_an_update_all_the_same(tmp_path, pins):
    grid = MemoryGrid([client_app([DordisMod(NO_NOISE), overwrite])] * CLIENTS, pins[1])
    mean, _ = summed(grid, tmp_path, pins[0])
    assert np.abs(CLIENTS * mean - sum(map(update, range(CLIENTS)))).max() < CLOSE
