"""Adaptive clipping in whole rounds: the bit is a separate chunk with its own noise and its own charge."""

import msgspec
import numpy as np
import pytest

from dordis.errors import ParametersRefused
from dordis.ledger.ledger import Budget, Charge
from dordis.pipeline import executor as drive
from dordis.privacy.accounting import ParticipationSchedule, SkellamSum
from dordis.privacy.clipping import Quantile, next_bound
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.protocols.encoded_sums import DistributedDP, releases_of
from dordis.protocols.noise_addition_and_removal import PrivateServer
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.secagg import SecAggServer
from dordis.simulation.exchange import LocalExchange
from tests.ledger.charged_rounds import new_ledger
from tests.privacy.clipping_bits import aggregate_below, plan_bit, planned_bit
from tests.protocols.rounds import agree_on_plan as agree_on
from tests.protocols.rounds import make_client, registry

CLIENTS, DIM = 12, 20


def _plan(clip):
    return plan(Setting(ParticipationSchedule(CLIENTS, CLIENTS, rounds=3), DIM, clip, bits=20), epsilon=8.0)


def _parameters(clip, index, bit):
    rotation = bytes([index]) * 32
    round = {"index": index, "clients": range(CLIENTS), "rotation": rotation, "mode": MALICIOUS}
    return agree_on(_plan(clip), further=[bit] if bit else [], **round)


def _run(p, updates, lost=()):
    private = DistributedDP.from_parameters(p, DIM)
    clients = {u: make_client(p, u, private.encode(x)) for u, x in updates.items()}
    exchange = LocalExchange(clients, lambda u, m: (u, type(m).__name__, getattr(m, "chunk", -1)) in lost)
    outputs = drive.run(PrivateServer(SecAggServer(p, registry(p)), p), exchange)
    assert not exchange.errors
    return private.decode(outputs), outputs


@pytest.mark.slow
def test_the_bound_follows_the_norms_through_whole_rounds():
    """Norms are 1, 2, .. 12; the bit has little noise here, so that where it ends is where it should."""
    direction = np.ones(DIM) / np.sqrt(DIM)
    updates = {u: (u + 1) * direction for u in range(CLIENTS)}
    bound, quantile = 1.5, Quantile(target=0.5, rate=1.0)
    for index in range(12):
        aggregate, _ = _run(_parameters(bound, index, planned_bit(1000, 4)), updates)
        true = sum(u + 1 <= bound for u in range(CLIENTS)) / CLIENTS
        assert aggregate_below(aggregate) == pytest.approx(true, abs=0.01)
        bound = next_bound(bound, aggregate_below(aggregate), quantile)
    assert 5.5 < bound < 7.5


def test_the_bit_has_its_own_noise_survivors_and_charge():
    noisy = plan_bit(multiplier=2.0, clients=CLIENTS, bits=20, kappa=_plan(1.0).noise.kappa)
    p = _parameters(1.0, 0, noisy)
    assert len(p.chunks) == 2
    assert p.chunks[1] == slice(p.dim - 1, p.dim)
    assert p.plans[1].variance == noisy.variance != p.plans[0].variance
    aggregate, outputs = _run(p, {u: np.zeros(DIM) for u in range(CLIENTS)}, {(3, "CollectInput", 1)})
    assert [len(output.survivors) for output in outputs] == [CLIENTS, CLIENTS - 1]
    assert aggregate.survivors == (CLIENTS,)
    assert outputs[1].charged >= noisy.variance
    update, bit = releases_of(p)
    assert (update[0].squared, list(update[1])) == (p.encoding.sensitivity, [0])
    assert (bit[0].squared, bit[0].l1, list(bit[1])) == (noisy.release.scale**2, noisy.release.scale, [1])
    charge = Charge.from_parameters(p)
    assert [release.l2_squared for release in charge.releases] == [p.encoding.sensitivity, noisy.release.scale**2]
    ledger = new_ledger(bytes(32), Budget(None, 1e-5))
    ledger.reserve(charge)
    ledger.complete(0, outputs)
    alone = new_ledger(bytes(32), Budget(None, 1e-5))
    alone.reserve(Charge.from_parameters(_parameters(1.0, 0, None)))
    assert ledger.summary().epsilon > alone.summary().epsilon
    assert isinstance(noisy.event(), SkellamSum)


def test_the_bit_is_a_parameter_that_everyone_hashes():
    bit = planned_bit(100, 4)
    assert _parameters(1.0, 0, bit).digest != _parameters(1.0, 0, None).digest
    assert _parameters(1.0, 0, bit).digest != _parameters(2.0, 0, bit).digest


def test_a_bit_without_its_chunk_is_refused():
    p = _parameters(1.0, 0, None)
    with pytest.raises(ParametersRefused, match="bit"):
        DistributedDP.from_parameters(
            msgspec.structs.replace(p, encoding=msgspec.structs.replace(p.encoding, bit=5)), DIM
        )
