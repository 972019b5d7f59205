"""The server takes clients into a round that were not selected for it, or influences the selection."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

from dordis.crypto import vrf
from dordis.protocol import ClientId, MemoryJournal
from dordis.selection.selection import NO_PROOFS, BalancedSelection, Proofs, Selection, UniformSelection
from dordis.selection.vrf_selection import VrfSelection
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import enter
from tests.adversary.participants import (
    BEACON,
    COMPLETE,
    IDS,
    INDEX,
    NEW_RUN,
    OUTSIDER,
    RUN,
    SPARSE,
    agreed,
    careful_owner,
    forged,
    honest_client,
    invitation,
    keys_of,
    registry,
)
from tests.adversary.session import Session

EVERYONE = VrfSelection(registry(), RUN, Fraction(len(registry())), 5, BEACON)
"""A lottery that everyone wins: what is wrong then is not the lot."""
LOTTERY = VrfSelection(registry(), RUN, Fraction(len(registry()), 2), 2, BEACON)
"""A lottery that half of them win."""
ENDED = replace(EVERYONE, indices=INDEX)
"""A lottery of a run whose indices are used up."""
TURNS = BalancedSelection(registry(), RUN, 8, 5)
DUE = tuple(sorted(TURNS.window(INDEX)))
"""Those whose turn it is."""
NOT_DUE = next(u for u in registry() if u not in DUE)


def proof(u: ClientId, index: int = INDEX) -> bytes:
    """Return a good proof."""
    return vrf.prove(keys_of(u).vrf, EVERYONE.alpha(index))


def enter_by(
    session: Session, selection: Selection = EVERYONE, proofs: Proofs = NO_PROOFS, victim: ClientId | None = None
) -> str:
    """Begin the round with a victim whose owner verifies the selection: good proofs, but for these."""
    shown = {u: proof(u) for u in session.parameters.clients} if isinstance(selection, VrfSelection) else {}
    me = session.victim if victim is None else victim
    return enter(session, careful_owner(me, selection=selection), {**shown, **proofs})


@attack(
    "a VRF output that is not below the threshold",
    refused_by="check_threshold (ProtocolError)",
    stage="AdvertiseKeys",
    graphs=(COMPLETE,),
    checks=(names.SELECTION + "vrf_selection.check_threshold",),
)
def bring_in_loser(session: Session) -> str:
    """Take a colluder that was not selected into U, with a valid proof of its VRF output."""
    won = [u for u in registry() if LOTTERY.draw(keys_of(u).vrf, INDEX) is not None]
    loser = next(u for u in registry() if u not in won)
    parameters = agreed(COMPLETE, clients=(*won, loser), threshold=len(won) + 1, tolerance=0)
    return enter_by(Session(parameters, session.trail), LOTTERY, victim=won[0])


@attack(
    "a proof for an earlier index than the last",
    refused_by="check_forward (UnexpectedRequest)",
    stage="Invite",
    graphs=(COMPLETE,),
    checks=(names.INVITATION + "check_forward",),
)
def go_back(session: Session) -> str:
    """Have the victim show its VRF outputs for two indices, and use the earlier one if that suits."""
    victim = session.victim
    owner = careful_owner(victim, selection=EVERYONE)
    session.parties[victim] = honest_client(victim, session.apps[victim], lambda round: MemoryJournal(), owner)
    session.ask(victim, invitation(forged(session.parameters, round=RUN + (INDEX + 1).to_bytes(8, "big"))))
    session.ask(victim, invitation(session.parameters))
    return "the victim showed an earlier lot after a later one"


false_selection = partial(Attack, graphs=(COMPLETE,))

ATTACKS = (
    false_selection(
        "a VRF proof of another round",
        "A colluder that was not selected shows its proof of another round, in which it was.",
        lambda session: enter_by(session, proofs={session.last: proof(session.last, INDEX - 1)}),
        refused_by="check_proof (InvalidProof)",
        stage="AdvertiseKeys",
        checks=(names.SELECTION + "vrf_selection.check_proof",),
    ),
    false_selection(
        "a VRF proof by another key",
        "A colluder that was not selected shows the proof of another client as its own.",
        lambda session: enter_by(session, proofs={session.last: proof(OUTSIDER)}),
        refused_by="check_proof (InvalidProof)",
        stage="AdvertiseKeys",
        checks=(names.SELECTION + "vrf_selection.check_proof",),
    ),
    bring_in_loser,
    go_back,
    false_selection(
        "a proof for an index that the run does not have",
        "The server asks for VRF outputs of more indices than delta provides for.",
        lambda session: enter_by(session, ENDED),
        refused_by="check_index_planned (ProtocolError)",
        stage="Invite",
        checks=(names.SELECTION + "vrf_selection.check_index_planned",),
    ),
    false_selection(
        "a beacon of the server's own",
        "The server replaces the round's beacon, which determines the neighbours, by one that suits its colluders.",
        enter_by,
        refused_by="check_beacon (ProtocolError)",
        stage="AdvertiseKeys",
        checks=(names.BEACON,),
        agreed={"beacon": BEACON.value(INDEX + 1)},
    ),
    false_selection(
        "a circle of the server's own",
        "Under a public schedule the server replaces the beacon that places clients on the circle of SecAgg+.",
        lambda session: enter_by(session, TURNS),
        refused_by="check_beacon (ProtocolError)",
        stage="AdvertiseKeys",
        checks=(names.BEACON,),
        graphs=(SPARSE,),
        agreed={"clients": DUE, "beacon": BEACON.value(INDEX + 1)},
    ),
    false_selection(
        "a run id of the server's own",
        "The server tries run ids until its colluders are selected, after the beacon is known.",
        enter_by,
        refused_by="check_run (ProtocolError)",
        stage="Invite",
        checks=(names.SELECTION + "selection.check_run",),
        agreed={"run": NEW_RUN},
    ),
    false_selection(
        "most of the selected left out",
        "The server omits selected clients until the victim is among few, most of them colluders.",
        enter_by,
        refused_by="check_cohort (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.SELECTION + "selection.check_cohort",),
        agreed={"clients": IDS[:4], "threshold": 3, "tolerance": 1},
    ),
    false_selection(
        "proofs of clients that are not in U",
        "Proofs of clients outside U make the cohort look larger.",
        lambda session: enter_by(session, proofs={OUTSIDER: proof(OUTSIDER)}),
        refused_by="check_proofs_complete (MalformedMessage)",
        stage="AdvertiseKeys",
        checks=(names.SELECTION + "vrf_selection.check_proofs_complete",),
    ),
    false_selection(
        "a selection without the client itself",
        "A client is asked to join a round for which it was not selected.",
        lambda session: enter_by(session, victim=OUTSIDER),
        refused_by="check_member (ParametersRefused)",
        stage="AdvertiseKeys",
        overlapping=(names.MEMBER, names.SELECTION + "selection.check_member"),
    ),
    false_selection(
        "a client that is not scheduled",
        "The server takes a colluder into a round for which the public order does not schedule it.",
        lambda session: enter_by(session, TURNS, victim=DUE[0]),
        refused_by="check_all_scheduled (ProtocolError)",
        stage="AdvertiseKeys",
        checks=(names.SELECTION + "selection.check_all_scheduled",),
        agreed={"clients": (*DUE[:-1], NOT_DUE)},
    ),
    false_selection(
        "a selection that nobody can verify",
        "The server draws the clients itself in the malicious mode, where it could draw its colluders.",
        lambda session: enter_by(session, UniformSelection(8, bytes(32))),
        refused_by="check_semi_honest (ParametersRefused)",
        stage="Invite",
        checks=(names.SELECTION + "selection.check_semi_honest",),
    ),
)
