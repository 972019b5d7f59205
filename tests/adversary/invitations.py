"""The server sends an invitation, a model and parameters that do not belong together."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from dordis.privacy.scaling import Floats
from dordis.protocol import MemoryJournal
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.limits import FEW_PIECES
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.rounds.app import RoundInfo
from dordis.rounds.invitation import Invite, SendModel, Train
from dordis.rounds.model import ModelBytes, Numbers
from tests.adversary import names
from tests.adversary.attack import Attack
from tests.adversary.forms import enter
from tests.adversary.participants import (
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
from tests.adversary.selection import DUE, NOT_DUE, TURNS
from tests.adversary.session import Session, foiled_unless

MODEL, OTHER = ModelBytes.from_numbers([1.0, 2.0]), ModelBytes.from_numbers([1.0, 3.0])
LONG_BLOCK = replace(encoding_of(WHOLE, bytes(32)), block=2 * DIM)
CRUMBS = ModelBytes.from_numbers(np.zeros(FEW_PIECES))


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
        "a model other than the one invited for",
        "The victim gets a model made to reveal more of its data; the invitation has the digest of the others' model.",
        lambda session: train_from(session, OTHER.data),
        refused_by="check_model (ProtocolError)",
        stage="Train",
        checks=(names.MISSED + "check_model",),
    ),
    on_complete(
        "a model that is cut short",
        "The victim is told to train before the whole model has arrived.",
        lambda session: train_from(session, MODEL.data[:4]),
        refused_by="check_model (ProtocolError)",
        stage="Train",
        checks=(names.MISSED + "check_model",),
    ),
    on_complete(
        "parameters for another model",
        "The parameters name another model than the one that the victim trained from.",
        partial(begin_with, model=OTHER.digest),
        refused_by="check_same_model (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.INVITATION + "check_same_model", names.INVITATION_FITS),
    ),
    on_complete(
        "parameters for another round",
        "The victim is invited to one round, and its update is asked for in another.",
        partial(begin_with, round=EARLIER),
        refused_by="check_same_round (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.INVITATION + "check_same_round", names.INVITATION_FITS),
    ),
    on_complete(
        "a model in pieces of one byte",
        "The victim would write one record to its journal for each byte of the model.",
        send_crumbs,
        refused_by="check_pieces (UnexpectedRequest)",
        stage="SendModel",
        checks=(names.MISSED + "check_pieces",),
    ),
    on_complete(
        "a block that is longer than the vector",
        "Eight coordinates are padded to a block of 2^30: parameters of a kilobyte make the client allocate 8 GiB.",
        partial(begin_with, encoding=LONG_BLOCK, ends=words(2 * DIM)),
        refused_by="check_block (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.BLOCK,),
    ),
    on_complete(
        "parameters below the promised terms",
        "The invitation promised more noise than the parameters of the round have.",
        partial(begin_with, variances={0: "32"}),
        refused_by="check_terms_kept (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.TERMS_KEPT, names.INVITATION_FITS),
    ),
    on_complete(
        "an invitation with another registry",
        "The server invites with a registry of its own, in which every other client is a colluder.",
        lambda session: accept(session, lambda invite: replace(invite, registry=bytes(32))),
        refused_by="check_pinned (ParametersRefused)",
        stage="Invite",
        checks=(names.PINNED,),
    ),
    on_complete(
        "an invitation with a negative cost",
        "With negative costs the sum of a client's costs never exceeds its budget.",
        lambda session: accept(session, lambda invite: replace(invite, terms=replace(invite.terms, cost=-1.0))),
        refused_by="check_terms (ParametersRefused)",
        stage="Invite",
        checks=(names.TERMS,),
    ),
    on_complete(
        "an invitation to a client that is not scheduled",
        "The server has a client train in a round for which the public order does not schedule it.",
        lambda session: enter(session, careful_owner(NOT_DUE, selection=TURNS)),
        refused_by="check_scheduled (ProtocolError)",
        stage="Invite",
        overlapping=(
            names.SELECTION + "selection.check_scheduled",
            names.SELECTION + "selection.check_member",
            names.MEMBER,
        ),
        agreed={"clients": DUE},
    ),
    on_complete(
        "an invitation to another protocol",
        "The server has the victim train for a protocol that the victim does not support.",
        lambda session: accept(session, lambda invite: replace(invite, protocol="plaintext")),
        refused_by="check_protocol (ParametersRefused)",
        stage="Invite",
        overlapping=(names.INVITATION + "check_protocol", names.POLICY + "check_protocol"),
    ),
    Attack(
        "a sparse graph instead of the complete one",
        "A victim that was invited to the complete graph is put on a sparse one, where secrecy depends on the draw.",
        sparsify,
        refused_by="check_dense (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.INVITATION + "check_dense",),
        graphs=(SPARSE,),
    ),
    on_complete(
        "another round number for one client",
        "The application trains less from round to round; one client alone is told that this is the first round.",
        number_apart,
        refused_by="told_number",
        stage="Train",
        checks=(names.TOLD_NUMBER,),
    ),
    on_complete(
        "a malformed invitation",
        "An invitation has a round id without an index, or a model of impossible size.",
        lambda session: accept(session, lambda invite: replace(invite, round=invite.round[:-1])),
        refused_by="check_invite (MalformedMessage)",
        stage="Invite",
        checks=(names.INVITATION + "check_invite",),
    ),
)
