"""Ideal rounds ask owners as full ones do: the same clients refuse, for the same reasons, and the records agree."""

from dataclasses import fields, replace
from fractions import Fraction
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from dordis.crypto import vrf
from dordis.errors import DordisError
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.setting import Setting
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.secagg import SECAGG, SECAGG_PLUS
from dordis.runs.coordinator import Coordinator
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import EveryClient
from dordis.selection.vrf_selection import VrfSelection
from dordis.simulation.population import SimulatedHome
from dordis.simulation.run import home_of_updates

CLIENTS, DIM, RUN, STRICT = 24, 64, bytes(32), (3,)
FIDELITIES = ("full", "ideal")


class Nobody:
    """Nobody leaves."""

    def available(self, index, clients):
        return frozenset(clients)

    def leaving(self, index, clients):
        return {}


class StolenProofs(VrfSelection):
    """A server that shows the proof of one client for another one, too."""

    def select(self, index, available, proofs):
        selected = super().select(index, available, proofs)
        first, second, *_ = selected.clients
        return replace(selected, proofs=selected.proofs | {second: selected.proofs[first]})


class ChangesItsMind:
    """An owner who accepts invitations as before, and looks at the parameters as somebody else would."""

    def __init__(self, before, after):
        self.accept, self.train, self.attend, self.consent = before.accept, before.train, before.attend, after.consent
        self.conclude = before.conclude


class Changed(SimulatedHome):
    """A home in which the owners of some clients change their minds between the invitation and the parameters."""

    change: ClassVar = staticmethod(lambda owner: owner)

    def create_clients(self, run, selection, counted=None):
        clients = super().create_clients(run, selection, counted)
        for u in STRICT:
            clients[u].owner = ChangesItsMind(clients[u].owner, self.change(clients[u].owner))
        return clients


def home_of(fidelity, protocol=SECAGG, change=lambda owner: owner):
    sparse = protocol.sparse
    once = ParticipationSchedule(CLIENTS, CLIENTS, 1)
    setting = Setting(once, dim=DIM, colluders=0 if sparse else 1, tolerance=2 if sparse else None)
    design = RoundPlan(XNoise(), setting, 6.0, ThreatModel(MALICIOUS, sparse, True))
    entropy = np.random.default_rng(3).bytes
    home = home_of_updates(design, protocol, lambda u: np.full(DIM, 0.01), entropy, Nobody(), fidelity)
    kind = type("ChangedHome", (Changed,), {"change": staticmethod(change)})
    return kind(*(getattr(home, field.name) for field in fields(home)))


def everyone(home):
    return EveryClient(frozenset(home.identities.ids), RUN, home.job.design.setting.t)


def lots(home, kind=VrfSelection):
    return kind(home.registry, RUN, Fraction(CLIENTS), home.job.design.setting.t, home.beacon)


def outcome(home, selection=everyone, verified=None):
    """Return who refused a round and who is in its sum, or how it failed."""
    selected, job = selection(home), home.job
    rounds = home.open(RUN, selected if verified is None else verified(home), {})
    coordinator = Coordinator(
        RUN, job.app, job.design, selected, rounds, None, registry=home.root, beacon=home.beacon, tries=1,
        protocol=job.protocol.name, entropy=home.entropy,
    )  # fmt: skip
    try:
        finished = coordinator.round(1, 0)
    except DordisError as error:
        return type(error).__name__, str(error)
    return finished.record.dropped, [output.survivors for output in finished.result.outputs]


def with_policy(**lines):
    return lambda owner: replace(owner, policy=msgspec.structs.replace(owner.policy, **lines))


REFUSALS = {
    "a policy that asks for a larger quorum": (SECAGG, with_policy(quorum=Fraction(1))),
    "a policy that asks for more noise": (SECAGG, with_policy(variance=Fraction(10**12))),
    "a cohort that was not due": (SECAGG, lambda owner: replace(owner, selection=EveryClient(frozenset({3}), RUN, 1))),
    "no beacon": (SECAGG_PLUS, lambda owner: replace(owner, beacon=None)),
    "another beacon": (SECAGG_PLUS, lambda owner: replace(owner, beacon=SeedBeacon(bytes(32)))),
}


@pytest.mark.parametrize(("protocol", "change"), REFUSALS.values(), ids=REFUSALS)
def test_an_owner_that_refuses_a_full_round_refuses_an_ideal_one(protocol, change):
    full, ideal = (outcome(home_of(fidelity, protocol, change)) for fidelity in FIDELITIES)
    assert full == ideal
    dropped, survivors = full
    assert dropped == {"refused": STRICT}
    assert not {*STRICT} & {*survivors[0]}


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_nobody_refuses_a_round_as_it_was_agreed_on(fidelity):
    for selection in (everyone, lots):
        dropped, survivors = outcome(home_of(fidelity), selection)
        assert not dropped
        assert len(survivors[0]) == CLIENTS


def test_a_lot_that_is_not_the_clients_own_ends_an_ideal_round_as_it_ends_a_full_one():
    full, ideal = (outcome(home_of(f), lambda home: lots(home, StolenProofs), lots) for f in FIDELITIES)
    assert full == ideal
    assert full[0] == "TooManyDropouts"


def test_proofs_are_verified_once_for_all_clients_of_an_ideal_round(monkeypatch):
    verified, verify = [], vrf.verify
    monkeypatch.setattr(vrf, "verify", lambda *given: verified.append(given) or verify(*given))
    outcome(home_of("ideal"), lots)
    assert len(verified) <= 2 * CLIENTS  # the server's and the clients'
