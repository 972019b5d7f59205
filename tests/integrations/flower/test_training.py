"""Records as the unit of privacy under Flower: one step of DP-SGD over all nodes, from a torch module of the app."""

import logging

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError, RoundFailed
from dordis.ledger.ledger import verify_ledger
from dordis.ledger.stated_epsilon import Basis
from dordis.records import run_records

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytestmark = [pytest.mark.flower, pytest.mark.torch]

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod, dordis_mod, train_step
from dordis.integrations.flower.messages import from_record
from dordis.integrations.flower.mod import DEFAULT_POLICY
from dordis.integrations.flower.pins import TRAIN_SECONDS, WEIGHT
from tests.integrations.flower.apps import MemoryGrid, client_app, model, pin, vanish
from tests.integrations.flower.test_grid import losing

NODES, RECORDS, FEATURES, CLASSES = 6, 40, 4, 3
AGREES = msgspec.structs.replace(DEFAULT_POLICY, units=frozenset({"record"}), epsilon=20.0)
DIM = CLASSES * (FEATURES + 1)


def module() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(FEATURES, CLASSES)


def records(place: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(place)
    return rng.normal(size=(RECORDS, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, RECORDS)


def app(mod=None, **more) -> ClientApp:
    """Return an app whose train function gives its records to `train_step`; nodes vanish as the message says."""
    made = ClientApp(mods=[vanish, mod or DordisMod(AGREES)])

    @made.train()
    def train(message: Message, context: Context) -> Message:
        x, y = records(int(context.node_config["partition-id"]))
        return train_step(message, module(), torch.tensor(x), torch.tensor(y), **more)

    return made


def settings(folder, **more) -> dict:
    given = {"output": str(folder), "federation.rounds": 2, "federation.tries": 1, "accept-hopeless": True}
    return given | {"privacy.unit": "record", "privacy.records": RECORDS, "privacy.epsilon": 20.0} | more


def play(grid, folder, rounds=2, registry=None, train_config=None, **more):
    private = DordisGrid(grid, settings(folder, **more), registry=registry)
    result = FedAvg(fraction_evaluate=0.0).start(
        private, ArrayRecord(module().state_dict()), num_rounds=rounds, train_config=train_config
    )
    return private, np.concatenate([result.arrays[name].numpy().ravel() for name in ("weight", "bias")])


def descent(places, clip: float = 1.0) -> np.ndarray:
    """Return the mean of the clipped negative gradients of all records of some nodes, by plain autograd."""
    total, net = np.zeros(DIM), module()
    for place in places:
        for x, y in zip(*records(place), strict=True):
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(torch.tensor(x)[None]), torch.tensor([y])).backward()
            gradient = np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
            total -= gradient * min(1, clip / np.linalg.norm(gradient))
    return total / (len(places) * RECORDS)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_round_is_one_step_with_the_clipped_gradients_of_all_records(tmp_path, lost):
    before = np.concatenate([p.detach().numpy().ravel() for p in module().parameters()])
    private, after = play(
        MemoryGrid([app()] * NODES),
        tmp_path,
        rounds=1,
        train_config=losing(lost, "AdvertiseKeys"),
        **{"privacy.sampling": 1.0},
    )
    noise = private._private.run.job.design.sigma * 1.3 / ((NODES - lost) * RECORDS)
    expected = descent(range(lost, NODES))
    assert np.linalg.norm(expected) > 10 * noise  # or the next line would say little
    assert np.abs(after - before - expected).max() < 6 * noise


def test_the_plan_is_stated_and_nothing_is_counted_from_data(tmp_path):
    grid = MemoryGrid([app()] * NODES)
    private, _ = play(grid, tmp_path, **{"privacy.sampling": 0.3})
    stated = verify_ledger(private.path / "ledger.jsonl").stated
    assert stated.basis is Basis.PLAN
    assert 19 < stated.epsilon <= 20
    assert private._reply_weight == RECORDS


class Watched(MemoryGrid):
    """Note the kinds of events that nodes store between messages."""

    kinds: frozenset[str] = frozenset()

    def _push(self, message):
        name = super()._push(message)
        state = self.contexts[message.metadata.dst_node_id].state
        stored = state.get("dordis-round", {})
        events = [value for key, value in stored.items() if key.startswith("event-")]
        self.kinds |= {msgspec.msgpack.decode(event)["type"] for event in events}
        return name


def test_no_sum_of_records_is_kept_between_two_messages(tmp_path):
    grid = Watched([app()] * NODES)
    play(grid, tmp_path, rounds=1)
    assert {"Invited", "Encoded"} <= grid.kinds
    assert "Trained" not in grid.kinds


def refusal(caplog, grid, folder, **more) -> str:
    """Return what nodes say who refuse to take part."""
    with caplog.at_level(logging.WARNING, "flwr.dordis"), pytest.raises(RoundFailed):
        play(grid, folder, rounds=1, **more)
    return caplog.text


def test_a_plain_train_function_is_refused_with_the_reason(tmp_path, caplog):
    grid = MemoryGrid([client_app([DordisMod(AGREES)])] * NODES)
    private = DordisGrid(grid, settings(tmp_path))
    with caplog.at_level(logging.WARNING, "flwr.dordis"), pytest.raises(RoundFailed):
        FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=1)
    assert "returns train_step(message, module, x, y)" in caplog.text


def test_a_step_is_no_update_of_a_client(tmp_path):
    """The node continues with a zero update, as after every failure of a train function."""
    private = DordisGrid(MemoryGrid([app(dordis_mod)] * NODES), {"output": str(tmp_path), "federation.rounds": 1})
    private._accept_hopeless = True
    FedAvg(fraction_evaluate=0.0).start(private, ArrayRecord(module().state_dict()), num_rounds=1)


def test_owners_agree_to_records_only_if_they_say_so(tmp_path, caplog):
    assert "line 'units'" in refusal(caplog, MemoryGrid([app(dordis_mod)] * NODES), tmp_path)


def test_more_records_than_declared_are_refused_without_their_number(tmp_path, caplog):
    said = refusal(caplog, MemoryGrid([app()] * NODES), tmp_path, **{"privacy.records": 30})
    assert "holds more than 30 records" in said
    server = [entry.getMessage() for entry in caplog.records if entry.name == "flwr.dordis"]
    assert not any("40" in line for line in server)


@pytest.mark.parametrize(("keys", "column"), [(None, "patient"), (list(range(RECORDS)), "")])
def test_ids_of_records_are_given_exactly_if_the_run_names_them(tmp_path, caplog, keys, column):
    grid = MemoryGrid([app(keys=keys)] * NODES)
    assert "set privacy.record" in refusal(caplog, grid, tmp_path, **{"privacy.record": column})


def test_rows_with_one_id_are_one_record(tmp_path):
    grid = MemoryGrid([app(keys=[row // 2 for row in range(RECORDS)])] * NODES)
    private, _ = play(grid, tmp_path, rounds=1, **{"privacy.record": "patient", "privacy.records": RECORDS // 2})
    assert private._private.run.job.config.privacy.record == "patient"


def test_arrays_of_another_module_are_refused(tmp_path, caplog):
    private = DordisGrid(MemoryGrid([app()] * NODES), settings(tmp_path))
    with caplog.at_level(logging.WARNING, "flwr.dordis"), pytest.raises(RoundFailed):
        FedAvg(fraction_evaluate=0.0).start(private, ArrayRecord(torch.nn.Linear(5, 3).state_dict()), num_rounds=1)
    assert "are not the parameters of the module" in caplog.text


def frozen() -> torch.nn.Module:
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 5), torch.nn.Linear(5, CLASSES))
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize("whole", [False, True])
def test_only_the_parameters_that_are_trained_are_sent(tmp_path, caplog, monkeypatch, whole):
    monkeypatch.setattr("tests.integrations.flower.test_training.module", frozen)
    private = DordisGrid(MemoryGrid([app()] * NODES), settings(tmp_path, **{"federation.rounds": 1}))
    sent = frozen().state_dict() if whole else frozen()[1].state_dict(prefix="1.")
    strategy = FedAvg(fraction_evaluate=0.0)
    if not whole:
        result = strategy.start(private, ArrayRecord(sent), num_rounds=1)
        assert not np.array_equal(result.arrays["1.bias"].numpy(), sent["1.bias"].numpy())
        return
    with caplog.at_level(logging.WARNING, "flwr.dordis"), pytest.raises(RoundFailed):
        strategy.start(private, ArrayRecord(sent), num_rounds=1)
    assert "without its frozen parameters and its buffers" in caplog.text


def test_a_weight_has_no_meaning_for_records(tmp_path):
    with pytest.raises(InputError, match="leave dordis-weight out"):
        play(MemoryGrid([app()] * NODES, {0: {WEIGHT: 0.5}}), tmp_path)


class Swapping(MemoryGrid):
    """A SuperLink that sends one node another model with the parameters than with the invitation."""

    def carry(self, place: int, content: RecordDict) -> RecordDict:
        frames, _ = from_record(content)
        kinds = [msgspec.msgpack.decode(frame[1:])["type"] for frame, _ in frames]
        if place == 0 and "AdvertiseKeys" in kinds:
            net = module()
            torch.nn.init.zeros_(net.weight)
            content["arrays"] = ArrayRecord(net.state_dict())
        return content


def test_another_model_with_the_parameters_is_refused(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "flwr.dordis"):
        private, _ = play(Swapping([app()] * NODES), tmp_path, rounds=1)
    (record,) = run_records.load_run(private.path).rounds
    assert record.dropped == {"refused": (1,)}
    assert "client 1: " in caplog.text


def test_a_pinned_node_measures_before_it_takes_part(tmp_path, deployed, caplog):
    for name in ("long", "short"):
        (tmp_path / name).mkdir()
    registry, config = pin(tmp_path / "long", NODES)
    play(MemoryGrid([app()] * NODES, config), tmp_path / "runs", rounds=1, registry=registry)
    registry, config = pin(tmp_path / "short", NODES, **{TRAIN_SECONDS: 1e-6})
    said = refusal(caplog, MemoryGrid([app()] * NODES, config, run=2), tmp_path / "late", registry=registry)
    assert "too short for the largest batch of records" in said
