"""Assisted rounds over Flower's messages: one message to every node, and two or three to those that help."""

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError, TooFewHelpers
from dordis.identity.certificates import new_tls_key
from dordis.identity.keys import Keys, PrivateKeys, save_keys
from dordis.identity.registry import Registry
from dordis.ledger.ledger import verify_ledger
from dordis.owner.policy import Policy
from dordis.protocol import ClientId
from dordis.records import run_records
from dordis.selection.selection import BalancedSelection

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAvg

from dordis.integrations.flower import DordisGrid, DordisMod
from dordis.integrations.flower.messages import from_record
from dordis.integrations.flower.pins import HELPER_KEYS
from dordis.integrations.flower.population import assign_helpers
from dordis.integrations.flower.state import StateHelperStore
from dordis.protocols.assisted.helper import HelperPolicy
from tests.integrations.flower.apps import MemoryGrid, client_app, model, pin, update, vanish, vector
from tests.integrations.flower.test_grid import CLOSE, losing

NODES = 5
ASSISTED = Policy(
    modes=frozenset({"semi-honest", "malicious"}),
    protocols=frozenset({"assisted"}),
    helpers=frozenset(range(1, 5)),
    mechanisms=frozenset({"none", "skellam"}),
    schemes=frozenset({"none", "single", "exact"}),
    without_guarantee=True,
)
MODES = {"semi-honest": (3, 2, 6), "malicious": (4, 3, 2)}
"""By mode, the number of helpers, of messages to each in a round, and of rounds: helpers show keys for four."""


class WatchedGrid(MemoryGrid):
    """Takes note of the types of messages of dordis that each node gets, a list for each message of Flower."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.asked = {place: [] for place in range(NODES)}

    def carry(self, place, content):
        frames, _ = from_record(content)
        self.asked[place].append([msgspec.msgpack.decode(frame[1:])["type"] for frame, _ in frames])
        return content


def nodes(assists=HelperPolicy(), kind=WatchedGrid, lost=()):  # noqa: B008  frozen
    """Return nodes that offer to help; those in `lost` do not."""
    mods = [DordisMod(ASSISTED, assists=None if place in lost else assists) for place in range(NODES)]
    return kind([client_app([vanish, mod]) for mod in mods])


def settings(folder, mode, **more):
    given = {"output": str(folder), "federation.rounds": 6, "privacy.noise.kind": "none", "protocol.use": "assisted"}
    return given | {"protocol.mode": mode, "protocol.colluders": 1} | more


def mean(places):
    return np.mean([update(place) for place in places], axis=0)


@pytest.mark.parametrize("mode", MODES)
def test_each_node_gets_one_message_and_helpers_few_more(tmp_path, mode):
    grid, (helpers, few, rounds) = nodes(), MODES[mode]
    private = DordisGrid(grid, settings(tmp_path, mode))
    result = FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=rounds)
    assert np.abs(vector(result.arrays) - vector(model()) - rounds * mean(range(NODES))).max() < rounds * CLOSE
    boxes, *later = [["Introduce", "OpenBoxes"], ["OpenBoxes", "AgreeOnSurvivors"], ["OpenBoxes", "Reveal"]][:: 4 - few]
    visit = ["Invite", "Train", "SendContribution"]
    for place, asked in grid.asked.items():
        helps = place < helpers
        start = [["Enrol"], ["Charter", "Introduce"]] if helps else [["Enrol"]]
        first = visit if helps else ["Charter", *visit]
        own = [boxes, *later] if helps else []
        assert asked == [*start, first, *own, *(rounds - 1) * [visit, *own]]
    records = run_records.load_run(private.path)
    assert [record.survivors for record in records.rounds] == [(NODES,)] * rounds
    assert records.manifest.assistance.helpers == tuple(range(1, helpers + 1))


def test_rounds_have_the_noise_and_the_epsilon_that_were_planned(tmp_path):
    private = DordisGrid(
        nodes(),
        settings(
            tmp_path, "malicious", **{"privacy.noise.kind": "xnoise", "protocol.tolerance": 2, "federation.rounds": 2}
        ),
        accept_hopeless=True,
    )
    FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=2, train_config=losing(2, "SendContribution"))
    records = run_records.load_run(private.path)
    assert [record.survivors for record in records.rounds] == [(NODES - 2,)] * 2
    assert verify_ledger(private.path / run_records.LEDGER).completed == 2
    assert records.result.epsilon == pytest.approx(records.manifest.plan.epsilon, rel=0.01)


def test_scheduled_nodes_alone_are_asked_and_helpers_know_them(tmp_path, monkeypatch):
    """The strategy samples all nodes; of these the public schedule has four in a round."""
    verified, verify = [], BalancedSelection.verify_client

    def watched(self, index, client, proof):
        verified.append((index, int(client)))
        verify(self, index, client, proof)

    monkeypatch.setattr(BalancedSelection, "verify_client", watched)
    more = {"federation.arrival": "invited", "federation.per_round": 4, "federation.rounds": 3, "protocol.tolerance": 1}
    private = DordisGrid(nodes(), settings(tmp_path, "malicious", **more))
    FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=3)
    records = run_records.load_run(private.path)
    order = BalancedSelection(Registry.load(private.path / run_records.REGISTRY), records.id, 4, 1)
    assert [set(record.clients) for record in records.rounds] == [order.window(i) for i in range(3)]
    asked = [(record.index, u) for record in records.rounds for u in record.clients]
    assert sorted(set(verified)) == asked
    assert len(verified) >= 5 * len(asked)  # the server, and four helpers


@pytest.mark.parametrize("stage", ["OpenBoxes", "AgreeOnSurvivors", "Reveal"])
def test_a_helper_may_vanish_at_any_stage(tmp_path, stage):
    """It is a client too, whose contribution counts."""
    private = DordisGrid(nodes(), settings(tmp_path, "malicious"))
    result = FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=1, train_config=losing(1, stage))
    assert np.abs(vector(result.arrays) - vector(model()) - mean(range(NODES))).max() < CLOSE


def pinned(folder, ids):
    """Return the registry of clients and helpers, and the settings of nodes whose owners have pinned both roles."""
    clients, config = pin(folder, NODES)
    keys = {ClientId(h): Keys.generate() for h in ids}
    registry = Registry(clients, {h: own.identity() for h, own in keys.items()})
    registry.save(folder / "registry.json")
    for place, (h, own) in enumerate(keys.items()):
        save_keys(folder / f"h{h}.key", PrivateKeys(new_tls_key(), own))
        config[place][HELPER_KEYS] = str(folder / f"h{h}.key")
    return registry, config


@pytest.mark.usefixtures("deployed")
def test_pinned_helpers_remember_on_disk_what_they_signed(tmp_path):
    """Nodes are stopped after every reply, before Flower has stored their state."""
    ids = [11, 12, 13, 14]
    registry, config = pinned(tmp_path, ids)
    policy = msgspec.structs.replace(ASSISTED, helpers=frozenset(ids))
    mod = DordisMod(policy, assists=HelperPolicy())
    grid = MemoryGrid([client_app([mod])] * NODES, config, forget=True)
    chosen = settings(tmp_path, "malicious", **{"protocol.options.helpers": ids})
    private = DordisGrid(grid, chosen, registry=registry)
    result = FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=2)
    assert np.abs(vector(result.arrays) - vector(model()) - 2 * mean(range(NODES))).max() < 2 * CLOSE
    stored = [path.name for path in (tmp_path / "h11.state").iterdir()]
    assert sum(name.startswith("survivors") for name in stored) == 2


@pytest.mark.usefixtures("deployed")
def test_a_node_without_an_owner_does_not_help_against_a_malicious_server(tmp_path):
    private = DordisGrid(nodes(), settings(tmp_path, "malicious"))
    with pytest.raises(InputError, match="a node needs its owner's files"):
        FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=1)


def test_a_registry_with_other_helpers_is_an_error(tmp_path):
    registry, _ = pinned(tmp_path, [11, 12, 13])
    with pytest.raises(InputError, match="the registry has 3 helpers, and the run needs those with the ids 1, 2, 3, 4"):
        assign_helpers(registry, {}, [1, 2, 3, 4])


def test_a_round_without_enough_helpers_fails(tmp_path):
    private = DordisGrid(nodes(), settings(tmp_path, "malicious", **{"federation.tries": 1}))
    with pytest.raises(TooFewHelpers):
        FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=1, train_config=losing(2, "OpenBoxes"))


def test_too_few_offers_are_an_error_with_its_remedy(tmp_path):
    private = DordisGrid(nodes(lost=(0, 1)), settings(tmp_path, "malicious"))
    with pytest.raises(InputError, match=r"3 nodes offer to be helpers, and the run needs 4: put DordisMod\("):
        FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=1)


def test_nodes_do_not_help_unless_their_owners_say_so(tmp_path):
    private = DordisGrid(nodes(assists=None), settings(tmp_path, "semi-honest"))
    with pytest.raises(InputError, match="0 nodes offer"):
        FedAvg(fraction_evaluate=0.0).start(private, model(), num_rounds=1)


def test_a_store_remembers_that_there_was_a_value(tmp_path):
    state = RecordDict()
    store = StateHelperStore(state)
    assert store.claim("epoch/1", b"a") == store.claim("epoch/1", b"b") == b"a"
    assert StateHelperStore(state).keys("epoch/") == ["epoch/1"]
    store.erase("epoch/1")
    assert (store.get("epoch/1"), store.get("epoch/2"), store.keys("")) == (b"", None, [])
    assert StateHelperStore(state).claim("epoch/1", b"c") == b""
