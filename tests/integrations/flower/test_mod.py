"""A node answers what its owner agrees to, and says clearly what is missing."""

from fractions import Fraction

import msgspec
import pytest

from dordis.errors import InputError, RoundFailed
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.protocol import ClientId

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod, dordis_mod
from dordis.integrations.flower.messages import RECORD, Enrol, RunDescription, from_record, seal, to_record
from dordis.integrations.flower.mod import DEFAULT_POLICY
from dordis.integrations.flower.pins import COHORT, KEYS, LEAST_COHORT, STATE
from tests.integrations.flower.apps import MemoryGrid, client_app, model, pin

CLIENTS = 6


def settings(folder, **more) -> dict:
    return {"output": str(folder), "federation.rounds": 1, "federation.tries": 1} | more


def start(grid, folder, registry=None, **more):
    private = DordisGrid(grid, settings(folder, **more), registry=registry)
    FedAvg().start(private, model(), num_rounds=1)
    return private


@pytest.mark.parametrize("mods", [[], [secaggplus_mod]], ids=["missing", "wrong"])
def test_a_node_without_our_mod_is_named_with_what_to_do(tmp_path, mods):
    grid = MemoryGrid([client_app([dordis_mod])] * (CLIENTS - 1) + [client_app(mods)])
    node = list(grid.get_node_ids())[-1]
    with pytest.raises(InputError, match=rf"node {node} cannot take part.*put dordis_mod among the mods"):
        start(grid, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_node_with_our_mod_answers_no_plain_message():
    grid = MemoryGrid([client_app([dordis_mod])] * 2)
    for kind in ("train", "evaluate"):
        node = next(iter(grid.get_node_ids()))
        (reply,) = grid.send_and_receive([Message(RecordDict({"arrays": model()}), node, kind)])
        assert "private rounds only" in reply.error.reason


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"cohort": 7}, "line 'cohort'"),
        ({"noise": Fraction(10**9)}, "line 'noise'"),
        ({"epsilon": 5.0}, "epsilon"),
        ({"participations": 0}, "its owner allows 0"),
    ],
)
def test_what_an_owner_forbids_does_not_happen(tmp_path, caplog, policy, reason):
    grid = MemoryGrid([client_app([DordisMod(msgspec.structs.replace(DEFAULT_POLICY, **policy))])] * CLIENTS)
    with pytest.raises(RoundFailed):
        start(grid, tmp_path)
    assert reason in caplog.text


def test_owners_pin_keys_and_registry_and_count_over_all_runs(tmp_path, deployed, caplog):
    registry, config = pin(tmp_path, CLIENTS)
    app = client_app([DordisMod(msgspec.structs.replace(DEFAULT_POLICY, participations=1))])
    private = start(MemoryGrid([app] * CLIENTS, config), tmp_path / "runs", registry)
    assert Registry.load(private.path / "registry.json").root() == registry.root()
    with pytest.raises(RoundFailed):
        start(MemoryGrid([app] * CLIENTS, config, run=2), tmp_path / "runs", registry)
    assert "epsilon would become" in caplog.text


def test_a_pinned_node_keeps_its_state_beside_its_key_unless_told_otherwise(tmp_path, deployed):
    registry, config = pin(tmp_path, CLIENTS)
    del config[0][STATE]
    start(MemoryGrid([client_app([dordis_mod])] * CLIENTS, config), tmp_path / "runs", registry)
    directories = [tmp_path / "1.state" / registry[ClientId(1)].signing.hex()]
    directories += [tmp_path / "state" / registry[ClientId(u)].signing.hex() for u in range(2, CLIENTS + 1)]
    for directory in directories:
        assert len((directory / "participations").read_bytes().splitlines()) == 1
        assert directory.stat().st_mode & 0o77 == 0


def test_a_node_without_its_owners_files_takes_no_part_against_a_malicious_server(tmp_path, deployed):
    with pytest.raises(InputError, match=r"node \d+ cannot take part.*set dordis-keys and dordis-registry"):
        start(MemoryGrid([client_app([dordis_mod])] * CLIENTS), tmp_path)
    policy = msgspec.structs.replace(DEFAULT_POLICY, modes=frozenset({"semi-honest"}))
    start(MemoryGrid([client_app([DordisMod(policy)])] * CLIENTS), tmp_path, **{"protocol.mode": "semi-honest"})


def test_a_directory_needs_the_key_whose_it_is(context):
    context.node_config[STATE] = "state"
    reply = client_app([dordis_mod])(Message(RecordDict({RECORD: to_record([])}), 5, "train"), context)
    assert "set dordis-keys and dordis-registry too" in reply.error.reason


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({}, "set dordis-cohort on this node"),
        ({COHORT: CLIENTS - 1}, f"the run has {CLIENTS} clients per round"),
        ({COHORT: CLIENTS, LEAST_COHORT: CLIENTS}, f"agreed to {CLIENTS} and at least {CLIENTS}"),
    ],
)
def test_cohort_and_least_cohort_are_the_owners(tmp_path, deployed, caplog, own, reason):
    registry, config = pin(tmp_path, CLIENTS)
    config = {
        place: {key: value for key, value in pins.items() if key != COHORT} | own for place, pins in config.items()
    }
    with pytest.raises(RoundFailed):
        start(MemoryGrid([client_app([dordis_mod])] * CLIENTS, config), tmp_path / "runs", registry)
    assert reason in caplog.text


def test_a_key_file_that_is_not_there_is_named(tmp_path, deployed):
    registry, config = pin(tmp_path, CLIENTS)
    config[0][KEYS] = str(tmp_path / "none.key")
    with pytest.raises(InputError, match=r"node \d+ cannot take part.*cannot read the key file .*none\.key"):
        start(MemoryGrid([client_app([dordis_mod])] * CLIENTS, config), tmp_path / "runs", registry)


def told(context: Context, *messages) -> tuple[list, str]:
    """Tell a node something; return how many answers came, and the refusal."""
    content = RecordDict({RECORD: to_record([seal(message) for message in messages])})
    reply = client_app([dordis_mod])(Message(content, context.node_id, "train"), context)
    return from_record(reply.content)


def description(registry: Registry, **more) -> RunDescription:
    return RunDescription(
        bytes(32),
        registry.to_bytes(),
        **{"protocol": "secagg", "selection": "balanced", "per_round": 2, "least": 2} | more,
    )


@pytest.fixture
def context() -> Context:
    MemoryGrid([])
    return Context(1, 5, {"partition-id": 0}, RecordDict(), {})


@pytest.fixture
def registry(context) -> Registry:
    told(context, Enrol("semi-honest"))
    own = Keys(context.state["dordis-run"]["signing"], context.state["dordis-run"]["vrf"])
    return Registry({ClientId(1): own.identity(), ClientId(2): Keys.generate().identity()})


@pytest.mark.parametrize(
    "more",
    [{"run": bytes([1] * 32)}, {"registry": None}, {"protocol": "secagg+"}, {"selection": "uniform"}, {"per_round": 1}],
)
def test_the_first_description_that_a_node_hears_of_is_final(context, registry, deployed, more):
    first = description(registry, least=1)
    assert told(context, first) == told(context, first)  # the same one may come again
    if "registry" in more:
        other = Registry({ClientId(1): registry[ClientId(1)], ClientId(2): Keys.generate().identity()})
        more = {"registry": other.to_bytes()}
    answers, refusal = told(context, msgspec.structs.replace(first, **more))
    assert not answers
    assert "the first one of this Flower run, which is final" in refusal
    answers, refusal = told(Context(2, 5, {"partition-id": 0}, context.state, {}), description(registry))
    assert (len(answers), refusal) == (1, "")  # another run of Flower is another run


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"protocol": "plaintext"}, "the protocol 'plaintext' does not hide updates"),
        ({"protocol": "os:system"}, "the protocol 'os:system' does not hide updates, or is unknown"),
        ({"selection": "vrf"}, "cannot verify the selection"),
    ],
)
def test_a_description_that_would_weaken_the_run_is_refused(context, registry, more, reason):
    answers, refusal = told(context, description(registry, **more))
    assert not answers
    assert reason in refusal


def test_a_registry_without_my_keys_is_refused(context, registry):
    others = Registry({ClientId(u): Keys.generate().identity() for u in (1, 2)})
    assert "does not have the keys of this node" in told(context, description(others))[1]


def test_a_record_that_is_not_ours_is_refused_in_words(context):
    app = client_app([dordis_mod])
    for record in ({"count": 10**9}, {"count": 1, "0": "text"}, {"count": True, "0": b""}, {}):
        reply = app(Message(RecordDict({RECORD: ConfigRecord(record)}), 5, "train"), context)
        reason = reply.error.reason if reply.has_error() else from_record(reply.content)[1]
        assert reason
