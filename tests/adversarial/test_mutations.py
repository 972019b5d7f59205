"""Each check stands in somebody's way: take it out, and an attack that was refused succeeds."""

import inspect
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dordis import protocol, wire
from dordis.adversary import names
from dordis.adversary.attack import Attack
from dordis.adversary.suite import ATTACKS
from dordis.federation import (
    evidence,
    joint,
    journal,
    known_runs,
    manifest_checks,
    owner,
    participation,
    policy,
    selection,
    trainings,
)
from dordis.protocols import delivery, limits, parameters
from dordis.protocols.secagg import checks, statements
from dordis.protocols.secagg.client import SecAggClient
from dordis.rounds import invitation, missed, possible, terms

ALONE = [(attack, graph, name) for attack in ATTACKS for graph in attack.graphs for name in attack.checks]
TOGETHER = [(attack, graph) for attack in ATTACKS for graph in attack.graphs if attack.overlapping]

GUARDED = (
    protocol,
    wire,
    limits,
    parameters,
    checks,
    delivery,
    invitation,
    missed,
    possible,
    terms,
    selection,
    policy,
    owner,
    participation,
    trainings,
    journal,
    evidence,
    joint,
    manifest_checks,
    known_runs,
)
"""Modules whose functions called check_* must each be named by an attack."""
BY_NAME = {
    names.VERIFY,
    names.COMMITTED_SECRET,
    names.COMMITTED_SEED,
    names.CLAIM,
    names.DISK_CLAIM,
    names.BEACON,
    names.LATER,
    names.ROUND_COLLUDERS,
    names.REGISTRY_KEYS,
    names.FITS,
    names.CATCH,
    names.CONTAIN,
    names.TOLD_NUMBER,
    names.WAIT_OUT,
    names.IS_LIAR,
    names.READ_EVICTIONS,
    names.LEDGER_RUN,
    names.BUDGET,
    names.INHERIT,
    names.FOLDS,
    names.BOUND,
    names.CHUNKS,
    names.BLOCK,
    names.SAME_SIZE,
    names.IS_GARBLED,
    names.LEFT,
}
"""Others that must be."""
ALLOWED = {
    # Without it a client gives an empty answer and has used up its one answer at stage 5: nobody gains anything.
    "dordis.protocols.secagg.checks.check_not_empty",
    # Without it the look-up of the member's VRF key fails: a crash instead of a refusal, never an acceptance; and the
    # round protocol's own check_registered has refused such a U before.
    "dordis.federation.selection.check_registered",
    # Without them a client only works longer, for noise that its owner allows: `benchmarks refusals` measures that.
    "dordis.protocols.limits.check_components",
    "dordis.protocols.limits.check_places",
    # They read the owner's own file: whoever can alter that is on the client's device, which is trusted.
    "dordis.federation.participation.check_lines",
    "dordis.federation.participation.check_costs_counted",
    # It calls the others; without it everything passes.
    "dordis.federation.evidence.check_evidence",
    # Without it a run counts twice: the sum is larger than what was spent, never smaller.
    "dordis.federation.joint.check_once",
    # Without it a sum takes for Gaussian what is not, of honest runs: tests/federation/test_joint.py tries that.
    "dordis.federation.joint.check_gaussian",
}


def accept_anything(*_: Any, **__: Any) -> None:
    return None


def respond_anew(self: Any, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
    """A journal that remembers nothing."""
    return respond()[1]


def store_anew(self: Any, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
    """A journal that stores every answer and compares none."""
    changes, reply = respond()
    self._append(journal.Claimed(key, digest, changes, reply))
    return reply


def everything_is_due(self: Any, survivors: Any) -> dict[int, tuple[int, ...]]:
    return dict.fromkeys(survivors, tuple(range(self.deposited)))


def one_secret_for_all_chunks(self: Any, chunk: int) -> Any:
    return self.__dict__.setdefault("_once", MAKE_SECRETS(self, 0))


def add_whatever_comes(total: Any, data: bytes, bits: int) -> None:
    """Cut or fill up the bytes and overlook what is set beyond the last coordinate."""
    number = int.from_bytes(data, "little")
    total += np.array([number >> bits * i & (1 << bits) - 1 for i in range(total.size)], np.uint32)


def average_colluders(selection: Any, has_beacon: Any, clients: int, per_round: int, colluders: int, mode: Any) -> int:
    """Plan for the colluders that a round has on average, as if nobody chose among manifests."""
    return colluders * per_round // clients


MAKE_SECRETS = SecAggClient._make_secrets
REPLACEMENTS: dict[str, Callable[..., Any]] = {
    names.CLAIM: respond_anew,
    names.DISK_CLAIM: store_anew,
    names.DUE: everything_is_due,
    names.FRESH_SECRETS: one_secret_for_all_chunks,
    names.COMMITTED_SECRET: lambda *_: True,
    names.COMMITTED_SEED: lambda *_: True,
    names.FITS: lambda self, chunk, holder, wanted, shares: np.ones(len(wanted), np.bool_),
    names.ROUND_COLLUDERS: average_colluders,
    names.IS_LIAR: lambda partners, _: partners > 1,  # whoever explains more than one accusation goes alone
    names.READ_EVICTIONS: lambda _: (),
    names.IS_GARBLED: lambda _: False,
    names.LEFT: lambda patience, kind, used: patience.seconds(kind),
    names.UPLOAD_FORMAT: add_whatever_comes,
    names.CLIP: lambda x, clip: 1.0,
    names.TOLD_NUMBER: lambda said, index: said,
    names.CONTAIN: lambda what, work, tell_owner: work(),
    names.WAIT_OUT: lambda seconds, wait: wait(0.0),  # until training is finished, in that attack
    names.BOUNDED: lambda rounded, bound: True,
}


def take_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Replace a check by one that accepts anything, wherever it is known by its name."""
    place, attribute = name.rsplit(".", 1)
    home, check = pkgutil.resolve_name(place), pkgutil.resolve_name(name)
    users = [module for key, module in sys.modules.items() if key.startswith("dordis.")]
    for user in users if isinstance(home, ModuleType) else [home]:
        if vars(user).get(attribute) is check:
            monkeypatch.setattr(user, attribute, REPLACEMENTS.get(name, accept_anything))


def named(value: Any) -> str:
    return value.name if isinstance(value, Attack) else value.removeprefix("dordis.")


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "graph", "name"), ALONE, ids=named)
def test_without_the_check_the_attack_succeeds(
    attack: Attack, graph: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch, name)
    outcome = attack.run(graph)
    assert outcome.succeeded, outcome


@pytest.mark.parametrize(("attack", "graph"), TOGETHER, ids=named)
def test_without_all_of_the_overlapping_checks_the_attack_succeeds(
    attack: Attack, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in attack.overlapping:
        take_out(monkeypatch, name)
    outcome = attack.run(graph)
    assert outcome.succeeded, outcome


@pytest.mark.parametrize(("attack", "graph"), TOGETHER, ids=named)
def test_any_one_of_the_overlapping_checks_is_enough(attack: Attack, graph: str) -> None:
    for kept in attack.overlapping:
        with pytest.MonkeyPatch.context() as monkeypatch:
            for name in attack.overlapping:
                if name != kept:
                    take_out(monkeypatch, name)
            assert not attack.run(graph).succeeded, kept


def test_every_check_is_in_some_attacks_way() -> None:
    there = BY_NAME | {
        f"{module.__name__}.{name}"
        for module in GUARDED
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("check_") and function.__module__ == module.__name__
    }
    tried = {name for attack in ATTACKS for name in (*attack.checks, *attack.overlapping)}
    assert there - tried == ALLOWED
    assert statements.verify is pkgutil.resolve_name(names.VERIFY)
