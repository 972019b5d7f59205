"""Canary records: an audit of whole rounds that sample records, by an attack on every single record.

Every record of the honest clients is a canary: a coin decides whether its gradient is zero or has the largest allowed
norm, all of it in a coordinate of its own.  The attacked claim is the epsilon of the whole plan, so all planned events
are run.
"""

import secrets

import numpy as np

from dordis.apps.audit.auditor import (
    LEAST_DIM,
    Audit,
    FixedDropout,
    KnownNoise,
    attacked_round,
    check_departures,
    find_plan,
)
from dordis.apps.audit.canaries import CONFIDENCE, AttackedClaim, Coins, toss
from dordis.apps.audit.variance import variance_test
from dordis.errors import InputError
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import Entropy, Reals
from dordis.privacy.record_accounting import RecordSampling, count_events, sampling_word
from dordis.privacy.scaling import Floats
from dordis.privacy.setting import Setting
from dordis.privacy.strategies import XNoise
from dordis.protocol import ClientId
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg import SECAGG
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import RoundInfo
from dordis.rounds.model import Numbers
from dordis.rounds.records import Places, RecordClient
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.simulation.one_round import home_of_clients

WIDTH = 16


class CanaryRecords(RecordClient):
    """A client whose records have gradients along coordinates of their own, from `first` on, or zero gradients."""

    def __init__(self, first: int, coins: Coins, dim: int) -> None:
        self._first, self._coins, self._dim = first, coins, dim

    @property
    def records(self) -> int:
        """Return the number of canaries of the client."""
        return self._coins.size

    @property
    def width(self) -> int:
        """Return the number of records in a slice, whose gradients are computed at once."""
        return WIDTH

    def record_gradients(self, round: RoundInfo, model: Numbers, places: Places) -> Reals:
        """Return the gradient of each given record: the clip bound along its own coordinate, or zero, by its coin."""
        rows = np.zeros((places.size, self._dim))
        used = np.flatnonzero(places >= 0)
        rows[used, self._first + places[used]] = round.clip * self._coins[places[used]]
        return rows

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Raise InputError: with records as the unit of privacy a client has no single update."""
        raise InputError("canary records have no common update: use them with records as the unit of privacy")


def toy_record_design(
    clients: int = 10,
    records: int = 100,
    rounds: int = 5,
    sampling: float = 0.5,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    colluders: int = 1,
    strategy: XNoise | None = None,
    protocol: SummingProtocol = SECAGG,
) -> RoundPlan:
    """Plan a run with records as the unit of privacy, and a coordinate for each of `records` records of each client."""
    sampled = RecordSampling(sampling_word(sampling), records, count_events(rounds))
    setting = Setting(
        ParticipationSchedule(clients, clients, rounds),
        dim=max(LEAST_DIM, clients * records),
        delta=delta,
        colluders=colluders,
        sparse=protocol.sparse,
        records=sampled,
    )
    kind = ThreatModel(MALICIOUS if MALICIOUS in protocol.modes else SEMI_HONEST, protocol.sparse)
    return RoundPlan(strategy or XNoise(), setting, epsilon, kind)


def audit_records(
    design: RoundPlan,
    dropped: int = 0,
    late: int = 0,
    protocol: SummingProtocol = SECAGG,
    entropy: Entropy = secrets.token_bytes,
    confidence: float = CONFIDENCE,
) -> Audit:
    """Run the full protocol for all planned rounds and retries, guess which records took part, and test the noise.

    The first `design.setting.colluders` clients collude with the server, the last `dropped` clients leave before every
    upload, and `late` more after it.  All records of clients that upload and do not collude are canaries.
    """
    plan, setting = find_plan(design), design.setting
    if setting.records is None or setting.dim < setting.clients * setting.records.records:
        raise InputError("an audit of records needs records as the unit of privacy, and a coordinate for each record")
    check_departures(design, dropped, late)
    each, sampled = setting.records.records, setting.records
    canaries = slice(setting.colluders * each, (setting.clients - dropped) * each)
    claim = AttackedClaim(plan.epsilon, setting.given_delta, confidence)
    coins = np.zeros(setting.dim, np.bool_)
    coins[canaries] = toss(canaries.stop - canaries.start, entropy)
    claim.most(canaries.stop - canaries.start)

    def client(u: ClientId) -> CanaryRecords:
        first = (u - 1) * each
        return CanaryRecords(first, coins[first : first + each], setting.dim)

    known = KnownNoise(protocol, [ClientId(u) for u in range(1, setting.colluders + 1)], design.mechanism.law)
    leaving = FixedDropout.from_protocol(protocol, dropped, late)
    home = home_of_clients(design, known.protocol, client, entropy, leaving)
    rounds = [attacked_round(home, known) for _ in range(sampled.events)]
    scores = np.sum([seen.total[canaries] for seen in rounds], axis=0)
    middle = sampled.events * plan.records.probability * setting.clip / 2 if plan.records else 0.0
    return Audit(
        claim.judge(coins[canaries], scores, middle),
        variance_test([noise for seen in rounds for noise in seen.noise]),
        variance_test([noise for seen in rounds for noise in seen.hidden]),
        float(min(seen.charged for seen in rounds) / plan.variance),
    )
