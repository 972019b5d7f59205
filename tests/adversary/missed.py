"""The server sends false, too long or too many sums to a client that missed rounds."""

from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from dordis.kernels.ring import pack
from dordis.privacy.scaling import Floats
from dordis.protocol import MemoryJournal
from dordis.protocols.delivery import Dispatch
from dordis.protocols.encoded_sums import Aggregate
from dordis.protocols.limits import MOST_REPLAYS
from dordis.rounds.app import RoundInfo
from dordis.rounds.catch_up import missed_sum
from dordis.rounds.invitation import SendSum, Train
from dordis.rounds.model import ModelBytes, Numbers
from tests.adversary import names
from tests.adversary.attack import Attack
from tests.adversary.participants import (
    COMPLETE,
    DIM,
    EARLIER,
    IDS,
    NEW_RUN,
    Holder,
    forged,
    honest_client,
    invitation,
    random_update,
)
from tests.adversary.session import Session, foiled_unless

HELD, NAMED, LONG = (
    ModelBytes.from_numbers(np.zeros(512)),
    ModelBytes.from_numbers(np.ones(512)),
    ModelBytes.from_numbers(np.ones(1 << 17)),
)
"""What the victim has, and what invitations name, which is so long that many sums are shorter."""


class Following(Holder):
    """An application that makes the next model of the last one and the sum."""

    def next_model(self, round: RoundInfo, model: Numbers, aggregate: Aggregate) -> Floats | None:
        """Go by the first coordinate of the mean."""
        following: Floats = np.asarray(model, np.float64) + aggregate.mean[0]
        return following


def behind(session: Session, named: ModelBytes) -> None:
    """Have the victim keep a model in an earlier round, and invite it to one that starts from another."""
    victim, parameters = session.victim, session.parameters
    app = session.apps[victim] = Following(random_update(parameters))
    client = honest_client(victim, app, lambda round: MemoryJournal())
    session.parties[victim] = session.honest[victim] = client
    session.invite(victim, forged(parameters, round=EARLIER, model=HELD.digest), HELD)
    session.ask(victim, invitation(parameters, named))


def past_sum(session: Session, **changes: Any) -> SendSum:
    """Return the sum of the round before, which has the same value everywhere, with its parameters changed."""
    parameters = forged(session.parameters, round=EARLIER, model=HELD.digest)
    vector = pack(np.full(DIM, 800, np.uint32), parameters.bits).tobytes()
    request = missed_sum(1, parameters, [Dispatch(0, len(IDS), vector)])
    return replace(request, parameters=replace(request.parameters, **changes))


def replay(session: Session, request: SendSum, named: ModelBytes = NAMED) -> str:
    """Send the victim one sum; it must not use it."""
    behind(session, named)
    held = session.ask(session.victim, request).model
    foiled_unless(held not in (b"", HELD.digest), "the victim", "it has the model that it had")
    return "the victim computed a model from a sum that it must refuse"


def go_on(session: Session) -> str:
    """Send the victim one sum after the other, each of which follows on the last."""
    behind(session, LONG)
    digest = HELD.digest
    for _ in range(MOST_REPLAYS + 1):
        digest = session.ask(session.victim, past_sum(session, model=digest)).model
    return f"the victim computed with {MOST_REPLAYS + 1} sums"


def mislead(session: Session) -> str:
    """Send a sum that was never delivered, and have the victim train from what it leads to."""
    behind(session, NAMED)
    session.ask(session.victim, past_sum(session))
    session.ask(session.victim, Train())
    given = session.apps[session.victim].model
    foiled_unless(given != NAMED.array.tolist(), "the digest", "it is the model that was named")
    return "the victim trained from a model that nobody else has"


def lengthened(session: Session) -> SendSum:
    """Return a sum with bytes behind it that nobody reads."""
    request = past_sum(session)
    return replace(request, vector=bytes(request.vector) + bytes(100))


on_complete = partial(Attack, graphs=(COMPLETE,))

ATTACKS = (
    on_complete(
        "a sum of another run",
        "The victim would update its model with the sum of another run.",
        lambda session: replay(session, past_sum(session, round=NEW_RUN + bytes(8))),
        refused_by="check_missed (UnexpectedRequest)",
        stage="SendSum",
        checks=(names.MISSED + "check_missed",),
    ),
    on_complete(
        "sums that are longer than the model",
        "The victim would fetch sums that are longer than the model itself.",
        lambda session: replay(session, past_sum(session), ModelBytes.from_numbers(np.ones(8))),
        refused_by="check_shorter (UnexpectedRequest)",
        stage="SendSum",
        checks=(names.MISSED + "check_shorter",),
    ),
    on_complete(
        "more missed sums than allowed",
        "The victim is sent ever more sums of a few bytes each.",
        go_on,
        refused_by="check_shorter (UnexpectedRequest)",
        stage="SendSum",
        checks=(names.MISSED + "check_shorter",),
    ),
    on_complete(
        "a missed sum with trailing bytes",
        "The victim would accept a sum that is longer than the delivered one.",
        lambda session: replay(session, lengthened(session)),
        refused_by="check_whole (ProtocolError)",
        stage="SendSum",
        checks=(names.MISSED + "check_whole",),
    ),
    on_complete(
        "a missed sum under impossible parameters",
        "The victim would decode a sum by parameters that no round can have.",
        lambda session: replay(session, past_sum(session, beacon=bytes(1000))),
        refused_by="check_ceilings (ParametersRefused)",
        stage="SendSum",
        checks=(names.MISSED + "check_readable",),
    ),
    on_complete(
        "sums that lead to another model",
        "The victim would train from a model of its own, computed from a sum that was never released.",
        mislead,
        refused_by="check_model (ProtocolError)",
        stage="Train",
        checks=(names.MISSED + "check_model",),
    ),
)
