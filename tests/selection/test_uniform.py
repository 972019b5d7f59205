"""Uniform selection: sizes, the draw, and the refusal in the malicious mode."""

from collections import Counter
from math import comb

import pytest
from scipy import stats

from dordis.errors import (
    InvalidProof,
    ParametersRefused,
    ProtocolError,
    TooFewClients,
)
from dordis.protocols.parameters import SEMI_HONEST
from dordis.selection import selection as module
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import UniformSelection
from tests.runs.cohorts import a_round, an_invite, registry_of

REFUSALS = (ProtocolError, InvalidProof, ParametersRefused)
BEACON = SeedBeacon(b"beacon of tests/federation......")
EVERYONE = tuple(range(1, 31))
REGISTRY = registry_of(*EVERYONE)


def test_what_nobody_can_verify_is_for_semi_honest_servers_only(monkeypatch):
    strategy = UniformSelection(5, bytes(32))
    U = strategy.select(0, EVERYONE).clients
    strategy.verify(a_round(U, mode=SEMI_HONEST), {}, U[0])
    with pytest.raises(ParametersRefused, match="malicious"):
        strategy.verify(a_round(U), {}, U[0])
    with pytest.raises(ParametersRefused, match="not among"):
        strategy.verify(a_round(U, mode=SEMI_HONEST), {}, 99)
    assert strategy.claim(an_invite(0, mode=SEMI_HONEST), U[0], b"") == b""
    with pytest.raises(ParametersRefused, match="malicious"):
        strategy.claim(an_invite(0), U[0], b"")
    monkeypatch.setattr(module, "check_semi_honest", lambda *_: None)
    strategy.verify(a_round(U), {}, U[0])
    strategy.claim(an_invite(0), U[0], b"")


def test_uniform_invites_those_whom_it_would_select():
    strategy = UniformSelection(5, bytes(32))
    for index in range(5):
        invited = strategy.candidates(index, EVERYONE)
        assert invited == strategy.select(index, EVERYONE).clients
        assert strategy.select(index, invited[1:]).clients == invited[1:]


def test_uniform_takes_count_of_those_available_from_the_seed_and_the_index():
    draws = [UniformSelection(5, bytes(32)).select(index, EVERYONE[:20]).clients for index in range(50)]
    assert all(len(set(U)) == 5 and set(U) <= set(EVERYONE[:20]) and list(U) == sorted(U) for U in draws)
    assert draws[7] == UniformSelection(5, bytes(32)).select(7, EVERYONE[19::-1]).clients
    assert len(set(draws)) > 45
    assert draws[0] != UniformSelection(5, bytes([1] * 32)).select(0, EVERYONE[:20]).clients


def test_uniform_takes_everyone_if_there_are_fewer_and_fails_below_the_least():
    assert UniformSelection(5, bytes(32), least=2).select(0, [9, 3]).clients == (3, 9)
    with pytest.raises(TooFewClients):
        UniformSelection(5, bytes(32), least=2).select(0, [9])


def test_uniform_selects_every_set_equally_often():
    found = Counter(UniformSelection(2, bytes(32)).select(index, range(5)).clients for index in range(5000))
    assert len(found) == comb(5, 2)
    assert stats.chisquare(list(found.values())).pvalue > 1e-4
