"""A node answers what its owner agrees to, and says clearly what is missing."""

from fractions import Fraction

import msgspec
import pytest

from dordis.errors import InputError, RoundFailed
from dordis.federation.certificates import new_tls_key
from dordis.federation.identity import PrivateKeys, save_keys
from dordis.federation.registry import Keys, Registry
from dordis.protocol import ClientId

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod, dordis_mod
from dordis.integrations.flower.messages import RECORD, Charter, Enrol, from_record, seal, to_record
from dordis.integrations.flower.mod import KEYS, PARTICIPATIONS, REGISTRY, USUAL
from tests.integrations.flower.apps import MemoryGrid, client_app, model

CLIENTS = 6


def settings(folder, **more) -> dict:
    return {"output": str(folder), "federation.rounds": 1, "federation.tries": 1} | more


def start(grid, folder, **more):
    private = DordisGrid(grid, settings(folder, **more))
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
    grid = MemoryGrid([client_app([DordisMod(msgspec.structs.replace(USUAL, **policy))])] * CLIENTS)
    with pytest.raises(RoundFailed):
        start(grid, tmp_path)
    assert reason in caplog.text


def test_owners_pin_keys_and_registry_and_count_over_all_runs(tmp_path):
    keys = {ClientId(u): Keys.generate() for u in range(11, 11 + CLIENTS)}
    registry = Registry({u: own.identity() for u, own in keys.items()})
    registry.save(tmp_path / "registry.json")
    config = {}
    for place, (u, own) in enumerate(keys.items()):
        save_keys(tmp_path / f"{u}.key", PrivateKeys(new_tls_key(), own))
        files = {KEYS: f"{u}.key", REGISTRY: "registry.json", PARTICIPATIONS: f"{u}.rounds"}
        config[place] = {name: str(tmp_path / file) for name, file in files.items()}
    grid = MemoryGrid([client_app([DordisMod(msgspec.structs.replace(USUAL, participations=1))])] * CLIENTS, config)
    private = DordisGrid(grid, settings(tmp_path / "runs"), registry=registry)
    FedAvg().start(private, model(), num_rounds=1)
    assert Registry.load(private.path / "registry.json").root() == registry.root()
    another = MemoryGrid([client_app([DordisMod(msgspec.structs.replace(USUAL, participations=1))])] * CLIENTS, config)
    with pytest.raises(RoundFailed):
        FedAvg().start(DordisGrid(another, settings(tmp_path / "runs"), registry=registry), model(), num_rounds=1)


def told(context: Context, *messages) -> tuple[list, str]:
    """Tell a node something; return how many answers came, and the refusal."""
    content = RecordDict({RECORD: to_record([seal(message) for message in messages])})
    reply = client_app([dordis_mod])(Message(content, context.node_id, "train"), context)
    return from_record(reply.content)


def charter(registry: Registry, **more) -> Charter:
    return Charter(
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
    told(context, Enrol())
    own = Keys(context.state["dordis-run"]["signing"], context.state["dordis-run"]["vrf"])
    return Registry({ClientId(1): own.identity(), ClientId(2): Keys.generate().identity()})


def test_the_first_registry_that_a_node_hears_of_stays(context, registry):
    answers, refusal = told(context, charter(registry))
    assert (len(answers), refusal) == (1, "")
    other = Registry({ClientId(1): registry[ClientId(1)], ClientId(2): Keys.generate().identity()})
    answers, refusal = told(context, charter(other))
    assert not answers
    assert "another registry than the one of the runs before" in refusal


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"protocol": "plaintext"}, "no part in rounds of the protocol 'plaintext'"),
        ({"protocol": "os:system"}, "no part in rounds of the protocol 'os:system'"),
        ({"selection": "vrf"}, "cannot verify a selection"),
    ],
)
def test_a_charter_that_would_weaken_the_run_is_refused(context, registry, more, reason):
    answers, refusal = told(context, charter(registry, **more))
    assert not answers
    assert reason in refusal


def test_a_registry_without_my_keys_is_refused(context, registry):
    others = Registry({ClientId(u): Keys.generate().identity() for u in (1, 2)})
    assert "does not have the keys of this node" in told(context, charter(others))[1]


def test_a_record_that_is_not_ours_is_refused_in_words(context):
    app = client_app([dordis_mod])
    for record in ({"count": 10**9}, {"count": 1, "0": "text"}, {"count": True, "0": b""}, {}):
        reply = app(Message(RecordDict({RECORD: ConfigRecord(record)}), 5, "train"), context)
        reason = reply.error.reason if reply.has_error() else from_record(reply.content)[1]
        assert reason
