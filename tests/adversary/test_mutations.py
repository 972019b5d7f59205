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
from dordis.identity import revocations
from dordis.ledger import combine_runs, receipt, verification
from dordis.owner import directory, journal, manifest_checks, participation, policy
from dordis.owner import receipts as kept_receipts
from dordis.privacy.record_accounting import SampledEvents
from dordis.protocols import cohort, delivery, limits, parameters, summing
from dordis.protocols.assisted import checks as assisted_checks
from dordis.protocols.assisted import parameters as assisted_parameters
from dordis.protocols.secagg import client_checks
from dordis.protocols.secagg.client import SecAggClient
from dordis.rounds import arrivals, impossible_sums, invitation
from dordis.rounds import catch_up as missed
from dordis.selection import selection, vrf_selection
from tests.adversary import names
from tests.adversary.attack import Attack
from tests.adversary.suite import ATTACKS
from tests.case_samples import sample_cases
from tests.protocols.shared_example import EXAMPLE

ALONE = [(attack, graph, name) for attack in ATTACKS for graph in attack.graphs for name in attack.checks]
TOGETHER = [(attack, graph) for attack in ATTACKS for graph in attack.graphs if attack.overlapping]

GUARDED = (
    assisted_checks,
    assisted_parameters,
    protocol,
    wire,
    limits,
    parameters,
    cohort,
    client_checks,
    delivery,
    invitation,
    missed,
    impossible_sums,
    selection,
    arrivals,
    summing,
    vrf_selection,
    policy,
    participation,
    journal,
    receipt,
    revocations,
    verification,
    combine_runs,
    manifest_checks,
    directory,
    kept_receipts,
)
"""Modules whose functions called check_* must each be named by an attack."""
ALLOWED = {
    # They refuse a mistake of whoever runs the client itself.
    "dordis.protocols.assisted.checks.check_length",
    "dordis.protocols.assisted.checks.check_signing_key",
    # Without them a look-up fails: a crash instead of a refusal, never an answer.
    "dordis.protocols.assisted.checks.check_helpers_registered",
    "dordis.protocols.assisted.checks.check_all_opened",
    "dordis.protocols.assisted.checks.check_own_sets",
    # Without it keys for numbers that are no index fail, or take disk: tests/network/test_helper_setup.py.
    "dordis.protocols.assisted.checks.check_round_id",
    # Without it the key agreement refuses the key: tests/protocols/assisted/test_client.py.
    "dordis.protocols.assisted.checks.check_epoch_keys_well_formed",
    # Without them the digests do not fit, and the dishonest client is named all the same.
    "dordis.protocols.assisted.checks.check_header_form",
    "dordis.protocols.assisted.checks.check_seed_count",
    # Without it the first header of a client counts.
    "dordis.protocols.assisted.checks.check_one_header",
    # Without it the rule of removal refuses a client twice: tests/protocols/assisted/test_helper.py.
    "dordis.protocols.assisted.checks.check_sorted",
    # Without it a client gives an empty answer and has used up its one answer at stage 5: nobody gains anything.
    "dordis.protocols.secagg.client_checks.check_not_empty",
    # Without it the look-up of the member's VRF key fails: a crash instead of a refusal, never an acceptance; and the
    # round protocol's own check_registered has refused such a U before.
    "dordis.selection.vrf_selection.check_registered",
    # Without them a client only works longer, for noise that its owner allows: `benchmarks refusals` measures that.
    "dordis.protocols.limits.check_components",
    "dordis.protocols.limits.check_places",
    # It reads the owner's own file: whoever can alter that is on the client's device, which is trusted.
    "dordis.owner.participation.check_lines",
    # It calls the others; without it everything passes.
    "dordis.ledger.verification.check_evidence",
    "dordis.owner.receipts.check_history",
    # Without it a run counts twice: the sum is larger than what was spent, never smaller.
    "dordis.ledger.combine_runs.check_once",
    # Without it a sum takes for Gaussian what is not, of honest runs: tests/ledger/test_combine_runs.py tries that.
    "dordis.ledger.combine_runs.check_gaussian",
}


def accept_anything(*_: Any, **__: Any) -> None:
    return None


def respond_anew(self: Any, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
    """A journal that remembers nothing."""
    return respond()[1]


def store_anew(self: Any, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
    """A journal that stores every answer and compares none."""
    changes, reply = respond()
    self._append(journal.StoredAnswer(key, digest, changes, reply))
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
    names.REMAINING_TIME: lambda deadlines, kind, used: deadlines.deadline(kind),
    names.UPLOAD_FORMAT: add_whatever_comes,
    names.PLANNED: lambda known, index, cost: known or SampledEvents(cost.sampled[0], cost.theta_squared, 10),
    names.CLIP: lambda x, clip: 1.0,
    names.TOLD_NUMBER: lambda said, index: said,
    names.CONTAIN: lambda what, work, tell_owner: work(),
    names.WAIT_OUT: lambda seconds, wait: wait(0.0),  # until training is finished, in that attack
    names.BOUNDED: lambda rounded, bound: True,
    "dordis.protocols.assisted.disputes.Complaints._settled": lambda self, faulty, colluders: self,
    "dordis.protocols.assisted.parameters.AssistedParameters.voices": property(lambda self: 1),
}


def take_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Replace a check by one that accepts anything, wherever it is known by its name."""
    place, attribute = name.rsplit(".", 1)
    home, check = pkgutil.resolve_name(place), pkgutil.resolve_name(name)
    users = [module for key, module in sys.modules.items() if key.startswith("dordis.") or module is EXAMPLE]
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


@pytest.mark.parametrize(("attack", "graph"), sample_cases(TOGETHER, one_in=3), ids=named)
def test_without_all_of_the_overlapping_checks_the_attack_succeeds(
    attack: Attack, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in attack.overlapping:
        take_out(monkeypatch, name)
    outcome = attack.run(graph)
    assert outcome.succeeded, outcome


@pytest.mark.parametrize(("attack", "graph"), sample_cases(TOGETHER, one_in=3), ids=named)
def test_any_one_of_the_overlapping_checks_is_enough(attack: Attack, graph: str) -> None:
    for kept in attack.overlapping:
        with pytest.MonkeyPatch.context() as monkeypatch:
            for name in attack.overlapping:
                if name != kept:
                    take_out(monkeypatch, name)
            assert not attack.run(graph).succeeded, kept


def test_every_check_is_in_some_attacks_way() -> None:
    named = {value for key, value in vars(names).items() if key.isupper() and not value.endswith(".")}
    guards = named | {
        f"{module.__name__}.{name}"
        for module in GUARDED
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("check_") and function.__module__ == module.__name__
    }
    tried = {name for attack in ATTACKS for name in (*attack.checks, *attack.overlapping)}
    assert guards - tried == ALLOWED
    assert client_checks.verify_statement is pkgutil.resolve_name(names.VERIFY)
