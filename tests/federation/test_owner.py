"""An owner stands before its client: nothing is sent outside the policy, nothing uploaded uncounted."""

from fractions import Fraction

import pytest

from dordis import drive
from dordis.errors import ParametersRefused, ParticipationRefused, ProtocolError, TooManyDropouts
from dordis.federation.beacon import SeedBeacon
from dordis.federation.owner import Owner
from dordis.federation.participation import MemoryParticipation
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.selection import Balanced, Verifiable
from dordis.privacy.xnoise import Scheme
from dordis.protocols.parameters import MALICIOUS, Encoding, agree_on
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import REPLIES, AdvertiseKeys
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import random_inputs

RUN = b"run" + bytes(29)
KEYS = {u: Keys(bytes([u + 1]) * 32, bytes([u + 101]) * 32) for u in range(14)}
REGISTRY = Registry({u: keys.identity() for u, keys in KEYS.items()})
BEACON = SeedBeacon(b"b" * 32)
POLICY = Policy(cohort=5, noise=Fraction(1, 100))


def _parameters(clients, index=0, **changes):
    n = len(clients)
    settings = {
        "mode": MALICIOUS, "run": RUN, "index": index, "clients": clients, "threshold": n // 2 + 2, "tolerance": 1,
        "bits": 20, "ends": [6], "scheme": Scheme.SINGLE, "variances": [9], "encoding": Encoding("skellam", 1.0, 100),
        "beacon": BEACON.value(index),
    }  # fmt: skip
    return agree_on(**settings | changes)


def _run(p, selection, proofs=None, counts=None, policy=POLICY):
    counts = counts or {u: MemoryParticipation(cap=3) for u in p.clients}
    clients = {
        u: SecAggClient(
            u,
            x,
            owner=Owner(u, policy, selection, counts[u], BEACON),
            signing=KEYS[u].signing,
            registry=REGISTRY.signing_keys(),
        )
        for u, x in random_inputs(p, 0).items()
    }
    exchange = LocalExchange(clients, REPLIES)
    try:
        return drive.run(SecAggServer(p, REGISTRY.signing_keys(), proofs), exchange), exchange, counts
    except TooManyDropouts:
        return None, exchange, counts


def test_a_round_of_the_balanced_selection_goes_through_and_is_counted_once():
    selection = Balanced(REGISTRY, RUN, 7, 5)
    output, _, counts = _run(_parameters(selection.select(0, range(14)).clients), selection)
    assert output is not None
    assert all(count.count() == 1 for count in counts.values())


def test_a_round_of_the_verifiable_selection_goes_through_on_a_sparse_graph():
    selection = Verifiable(REGISTRY, RUN, Fraction(12), 8, BEACON)
    proofs = {u: proof for u, keys in KEYS.items() if (proof := selection.draw(keys, 2)) is not None}
    selected = selection.select(2, range(14), proofs)
    p = _parameters(selected.clients, 2, degree=6, threshold=7, quorum=len(selected.clients) // 2 + 2)
    output, _, _ = _run(p, selection, selected.proofs)
    assert output is not None


def test_a_client_outside_the_window_makes_everyone_refuse():
    selection = Balanced(REGISTRY, RUN, 7, 5)
    strangers = sorted(set(range(14)) - set(selection.window(0)))
    output, exchange, counts = _run(_parameters([*sorted(selection.window(0))[:6], strangers[0]]), selection)
    assert output is None
    assert len(exchange.errors) == 7
    assert all(isinstance(error, ParametersRefused | ProtocolError) for _, error in exchange.errors)
    assert not any(exchange.sent.values())
    assert not any(count.count() for count in counts.values())


def test_too_little_noise_makes_everyone_refuse_before_anything_is_sent():
    selection = Balanced(REGISTRY, RUN, 7, 5)
    p = _parameters(selection.select(0, range(14)).clients)
    output, exchange, _ = _run(p, selection, policy=Policy(cohort=5, noise=Fraction(10)))
    assert output is None
    assert not any(exchange.sent.values())


def test_a_client_beyond_its_cap_does_not_upload():
    selection = Balanced(REGISTRY, RUN, 14, 5)
    counts = {u: MemoryParticipation(cap=2 if u else 1) for u in range(14)}
    for index in range(2):
        output, exchange, _ = _run(_parameters(range(14), index, threshold=9), selection, counts=counts)
        assert (0 in output[0].survivors) is (index == 0)
    assert [type(error) for u, error in exchange.errors if u == 0] == [ParticipationRefused]


def test_a_graph_from_another_beacon_is_refused():
    selection = Balanced(REGISTRY, RUN, 12, 5)
    clients = selection.select(0, range(14)).clients
    p = _parameters(clients, degree=6, threshold=7, quorum=8, beacon=BEACON.value(1))
    owner = Owner(clients[0], POLICY, selection, MemoryParticipation(), BEACON)
    client = SecAggClient(
        clients[0], random_inputs(p, 0)[clients[0]], owner=owner, signing=KEYS[clients[0]].signing,
        registry=REGISTRY.signing_keys(),
    )  # fmt: skip
    with pytest.raises(ProtocolError, match="beacon"):
        client.handle(AdvertiseKeys(p))
