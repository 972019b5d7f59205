"""Clients that were not selected as they should be."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.forms import enter
from dordis.adversary.participants import (
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
from dordis.adversary.session import Session
from dordis.crypto import vrf
from dordis.federation.selection import NO_PROOFS, Balanced, Proofs, Selection, Uniform, Verifiable
from dordis.protocol import ClientId, MemoryJournal

EVERYONE = Verifiable(registry(), RUN, Fraction(len(registry())), 5, BEACON)
"""A lottery that everyone wins: what is wrong then is not the lot."""
LOTTERY = Verifiable(registry(), RUN, Fraction(len(registry()), 2), 2, BEACON)
"""A lottery that half of them win."""
ENDED = replace(EVERYONE, indices=INDEX)
"""A lottery of a run whose indices are used up."""
TURNS = Balanced(registry(), RUN, 8, 5)
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
    shown = {u: proof(u) for u in session.parameters.clients} if isinstance(selection, Verifiable) else {}
    me = session.victim if victim is None else victim
    return enter(session, careful_owner(me, selection=selection), {**shown, **proofs})


@attack("a lot that is not below the threshold", graphs=(COMPLETE,), checks=(names.SELECTION + "check_threshold",))
def bring_in_loser(session: Session) -> str:
    """Bring in a client of the server's own that lost the draw, with a true proof of its lot."""
    won = [u for u in registry() if LOTTERY.draw(keys_of(u).vrf, INDEX) is not None]
    loser = next(u for u in registry() if u not in won)
    parameters = agreed(COMPLETE, clients=(*won, loser), threshold=len(won) + 1, tolerance=0)
    return enter_by(Session(parameters, session.trail), LOTTERY, victim=won[0])


@attack("a lot after that of a later index", graphs=(COMPLETE,), checks=(names.INVITATION + "check_forward",))
def go_back(session: Session) -> str:
    """Have the victim show its lots under two indices, and take the earlier one, as it suits."""
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
        "A colluder shows the lot of a round in which it was selected in one in which it was not.",
        lambda session: enter_by(session, proofs={session.last: proof(session.last, INDEX - 1)}),
        checks=(names.SELECTION + "check_proof",),
    ),
    false_selection(
        "a VRF proof by another key",
        "A colluder that was not selected shows the proof of another client as its own.",
        lambda session: enter_by(session, proofs={session.last: proof(OUTSIDER)}),
        checks=(names.SELECTION + "check_proof",),
    ),
    bring_in_loser,
    go_back,
    false_selection(
        "a lot under an index that the run does not have",
        "The server looks at lots far ahead, under more indices than delta provides for.",
        lambda session: enter_by(session, ENDED),
        checks=(names.SELECTION + "check_provided",),
    ),
    false_selection(
        "a beacon of the server's own",
        "The server replaces the round's beacon, on which the neighbours depend, by one that suits its colluders.",
        enter_by,
        checks=(names.BEACON,),
        agreed={"beacon": BEACON.value(INDEX + 1)},
    ),
    false_selection(
        "a circle of the server's own",
        "Clients come in turn; the server replaces the beacon that places them on the circle of SecAgg+.",
        lambda session: enter_by(session, TURNS),
        checks=(names.BEACON,),
        graphs=(SPARSE,),
        agreed={"clients": DUE, "beacon": BEACON.value(INDEX + 1)},
    ),
    false_selection(
        "a run id of the server's own",
        "The server tries run ids until its colluders are selected, after the beacon is known.",
        enter_by,
        checks=(names.SELECTION + "check_run",),
        agreed={"run": NEW_RUN},
    ),
    false_selection(
        "most of the selected left out",
        "The server leaves selected clients out until the victim is among few, most of them colluders.",
        enter_by,
        checks=(names.SELECTION + "check_cohort",),
        agreed={"clients": IDS[:4], "threshold": 3, "tolerance": 1},
    ),
    false_selection(
        "proofs of clients that are not in U",
        "Proofs of more clients than are in U make the cohort look like one that it is not.",
        lambda session: enter_by(session, proofs={OUTSIDER: proof(OUTSIDER)}),
        checks=(names.SELECTION + "check_complete",),
    ),
    false_selection(
        "a selection without the client itself",
        "A client is asked into a round to which others were selected, to be used where nobody expects it.",
        lambda session: enter_by(session, victim=OUTSIDER),
        overlapping=(names.MEMBER, names.SELECTION + "check_member"),
    ),
    false_selection(
        "a client out of its turn",
        "The server brings a colluder into a round in which the public order does not have it.",
        lambda session: enter_by(session, TURNS, victim=DUE[0]),
        checks=(names.SELECTION + "check_window",),
        agreed={"clients": (*DUE[:-1], NOT_DUE)},
    ),
    false_selection(
        "a selection that nobody can verify",
        "The server draws the clients itself in the malicious mode, where it could draw its colluders.",
        lambda session: enter_by(session, Uniform(8, bytes(32))),
        checks=(names.SELECTION + "check_semi_honest",),
    ),
)
