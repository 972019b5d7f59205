"""What comes before a round: an invitation, a model and parameters that do not belong together."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from dordis.adversary import names
from dordis.adversary.attack import Attack
from dordis.adversary.forms import enter
from dordis.adversary.participants import (
    COMPLETE,
    DIM,
    EARLIER,
    SPARSE,
    WHOLE,
    Holder,
    careful_owner,
    forged,
    honest_client,
    invitation,
    words,
)
from dordis.adversary.selection import DUE, NOT_DUE, TURNS
from dordis.adversary.session import Session, foiled_unless
from dordis.privacy.skellam import Floats
from dordis.protocol import MemoryJournal
from dordis.protocols.distributed_dp import encoding_of
from dordis.protocols.limits import FEW_PIECES
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.rounds.app import RoundInfo
from dordis.rounds.invitation import Invite, SendModel, Train
from dordis.rounds.model import ModelBytes, Numbers

MODEL, OTHER = ModelBytes.of([1.0, 2.0]), ModelBytes.of([1.0, 3.0])
LONG_BLOCK = replace(encoding_of(WHOLE, bytes(32)), block=2 * DIM)
CRUMBS = ModelBytes.of(np.zeros(FEW_PIECES))


def train_from(session: Session, sent: bytes) -> str:
    """Name one model and send another."""
    session.invite(session.victim, session.parameters, MODEL, sent)
    given = session.apps[session.victim].model
    foiled_unless(given is not None and given != MODEL.array.tolist(), "the digest", "it is the model that was named")
    return "the victim trained from a model that nobody else has"


class Scheduled(Holder):
    """An application whose updates become smaller with the number of the round."""

    scale = 0.0

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the update, divided by the number of the round."""
        self.scale = 1.0 / round.number
        return self.update * self.scale


def number_apart(session: Session) -> str:
    """Tell two clients of one round different numbers of it; the update of one of them is to vanish."""
    scales = []
    for number in (1, 10**9):
        app = Scheduled(np.ones(DIM))
        client = honest_client(session.victim, app, lambda round: MemoryJournal())
        session.deliver(client, replace(invitation(session.parameters), number=number))
        session.deliver(client, Train())
        scales.append(app.scale)
    foiled_unless(scales[0] != scales[1], "told_number", "both train alike")
    return f"the update of one client is {scales[0] / scales[1]:.0e} times as long as that of another"


def begin_with(session: Session, **changes: Any) -> str:
    """Invite the victim to the round as it is agreed on, and begin another one."""
    session.invite(session.victim, session.parameters)
    session.ask(session.victim, AdvertiseKeys(forged(session.parameters, **changes)))
    return "the victim entered a round that it was not invited to"


def accept(session: Session, alter: Callable[[Invite], Invite]) -> str:
    """Show the victim, whose owner is a careful one, an altered invitation."""
    session.give_owner(careful_owner(session.victim))
    session.ask(session.victim, alter(invitation(session.parameters)))
    session.ask(session.victim, Train())
    return "the victim trained for a round that its owner must refuse"


def send_crumbs(session: Session) -> str:
    """Send the victim a model byte by byte."""
    session.ask(session.victim, invitation(session.parameters, CRUMBS))
    for offset, byte in enumerate(CRUMBS.data):
        session.ask(session.victim, SendModel(offset, bytes([byte])))
    return f"the victim wrote {len(CRUMBS.data)} records to its journal for {len(CRUMBS.data)} bytes"


def sparsify(session: Session) -> str:
    """Begin a round on a sparse graph with a victim that was set up for the complete one."""
    victim = session.victim
    client = honest_client(victim, session.apps[victim], lambda round: MemoryJournal(), protocol=SECAGG)
    session.parties[victim] = session.honest[victim] = client
    session.ask(victim, replace(invitation(session.parameters), protocol=SECAGG.name))
    session.ask(victim, Train())
    session.ask(victim, AdvertiseKeys(session.parameters))
    return "the victim entered a round on a graph that its owner did not ask for"


on_complete = partial(Attack, graphs=(COMPLETE,))

ATTACKS = (
    on_complete(
        "a model other than the one named",
        "The victim is given a model of its own, made so that its update tells more: the digest names the others'.",
        lambda session: train_from(session, OTHER.data),
        checks=(names.INVITATION + "check_model",),
    ),
    on_complete(
        "a model that is cut short",
        "The victim is told to train before the whole model has come.",
        lambda session: train_from(session, MODEL.data[:4]),
        checks=(names.INVITATION + "check_model",),
    ),
    on_complete(
        "parameters for another model",
        "The round is agreed on another model than the one that the victim has trained from.",
        partial(begin_with, model=OTHER.digest),
        checks=(names.INVITATION + "check_same_model", names.INVITATION_FITS),
    ),
    on_complete(
        "parameters for another round",
        "The victim is invited to one round, and the update that it made is asked for in another one.",
        partial(begin_with, round=EARLIER),
        checks=(names.INVITATION + "check_same_round", names.INVITATION_FITS),
    ),
    on_complete(
        "a model in crumbs",
        "The victim is to write one record to its journal for each byte of the model.",
        send_crumbs,
        checks=(names.INVITATION + "check_pieces",),
    ),
    on_complete(
        "a block that is longer than the vector",
        "Eight coordinates are padded to a block of any length: 2^30 in parameters of a kilobyte take 8 GiB.",
        partial(begin_with, encoding=LONG_BLOCK, ends=words(2 * DIM)),
        checks=(names.BLOCK,),
    ),
    on_complete(
        "parameters below the promised terms",
        "The invitation promised noise that the round does not have.",
        partial(begin_with, variances={0: "32"}),
        checks=(names.TERMS_KEPT, names.INVITATION_FITS),
    ),
    on_complete(
        "an invitation under another registry",
        "The server invites under a registry of its own, in which every other client is a colluder.",
        lambda session: accept(session, lambda invite: replace(invite, registry=bytes(32))),
        checks=(names.PINNED,),
    ),
    on_complete(
        "an invitation to a round at a negative cost",
        "The server promises a cost with which no sum of costs ever passes a budget.",
        lambda session: accept(session, lambda invite: replace(invite, terms=replace(invite.terms, cost=-1.0))),
        checks=(names.TERMS,),
    ),
    on_complete(
        "an invitation to a client that is not due",
        "The server has a client train that the public order does not have in this round.",
        lambda session: enter(session, careful_owner(NOT_DUE, selection=TURNS)),
        overlapping=(
            names.SELECTION + "check_due",
            names.SELECTION + "check_member",
            names.MEMBER,
        ),
        agreed={"clients": DUE},
    ),
    on_complete(
        "an invitation to another protocol",
        "The server has the victim train for a protocol that the victim does not speak.",
        lambda session: accept(session, lambda invite: replace(invite, protocol="plaintext")),
        overlapping=(names.INVITATION + "check_protocol", names.POLICY + "check_protocol"),
    ),
    Attack(
        "a sparse graph for a complete one",
        "A victim that was set up for the complete graph is put on a sparse one, where secrecy rests on a lot.",
        sparsify,
        checks=(names.INVITATION + "check_dense",),
        graphs=(SPARSE,),
    ),
    on_complete(
        "another number of the round for one client",
        "The application trains less from round to round: only one client is told that the round is the first.",
        number_apart,
        checks=(names.TOLD_NUMBER,),
    ),
    on_complete(
        "an invitation that is none",
        "A round without an index, or a model without an end, is to pass for an invitation.",
        lambda session: accept(session, lambda invite: replace(invite, round=invite.round[:-1])),
        checks=(names.INVITATION + "check_invite",),
    ),
)
