"""Assisted rounds with scheduled clients: the server brings in colluders that were not selected.

T_C bounds the colluders that the schedule brings into a round. Nobody sees a list of clients: each helper verifies the
selection of every client whose box it opens, by the public window, or by a VRF proof and a beacon that it reads itself.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import partial

from dordis.crypto import vrf
from dordis.identity.registry import Registry
from dordis.protocol import ClientId
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import BalancedSelection, Selection
from dordis.selection.vrf_selection import VrfSelection
from tests.adversary import names
from tests.adversary.assisted import Asked
from tests.adversary.attack import attack
from tests.adversary.participants import BEACON, COMPLETE, keys_of
from tests.adversary.session import Session
from tests.protocols.assisted.parties import INDEX, RUN

COMING = tuple(map(ClientId, range(1, 8)))
"""The clients whose contributions the server has."""
MEMBERS = Registry({ClientId(u): keys_of(ClientId(u)).identity() for u in range(1, 21)})
EVERYONE = VrfSelection(MEMBERS, RUN, Fraction(len(MEMBERS)), 5, BEACON)
"""Lots of which all win: the attack is in the proof."""
HALF = VrfSelection(MEMBERS, RUN, Fraction(len(MEMBERS), 2), 5, BEACON)

invited = partial(attack, graphs=(COMPLETE,), stage="OpenBoxes")


def proof(u: ClientId, index: int = INDEX, selection: VrfSelection = EVERYONE) -> bytes:
    """Return the proof of a client's VRF output."""
    return vrf.prove(keys_of(u).vrf, selection.alpha(index))


def bring_in(session: Session, selection: Selection, proofs: Mapping[ClientId, bytes]) -> str:
    """Have helpers who verify a selection open the boxes of all clients that came, and agree on U3 with them."""
    served = Asked(session, proofs=dict(proofs), helping={"verify_client": selection.verify_client})
    for h in served.parameters.present:
        served.trail.stage = "OpenBoxes"
        served.open(h)
    served.sign(tuple(served.sent))
    return "helpers agreed on a U3 with a client that was not selected"


@invited(
    "a contribution of a client that is not scheduled",
    refused_by="check_contributor_scheduled (ProtocolError)",
    checks=(names.SELECTION + "selection.check_contributor_scheduled",),
)
def bring_in_unscheduled(session: Session) -> str:
    """The server takes the contribution of a colluder whose turn it is not, in the place of an honest client."""
    return bring_in(session, BalancedSelection(MEMBERS, RUN, 9, 5), {})


@invited(
    "a contribution with a lot that did not win",
    refused_by="check_threshold (ProtocolError)",
    checks=(names.SELECTION + "vrf_selection.check_threshold",),
)
def bring_in_loser(session: Session) -> str:
    """Colluders contribute whose VRF output is not below the threshold, with valid proofs of it."""
    return bring_in(session, HALF, {u: proof(u) for u in COMING})


@invited(
    "a contribution with the lot of another round",
    refused_by="check_proof (InvalidProof)",
    checks=(names.SELECTION + "vrf_selection.check_proof",),
)
def show_another_round(session: Session) -> str:
    """A colluder that was not selected contributes with its proof of an earlier round, in which it was."""
    return bring_in(session, EVERYONE, {u: proof(u, INDEX - (u == 1)) for u in COMING})


@invited(
    "a contribution with the lot of another client",
    refused_by="check_proof (InvalidProof)",
    checks=(names.SELECTION + "vrf_selection.check_proof",),
)
def show_another_client(session: Session) -> str:
    """A colluder that was not selected contributes with the proof of another colluder."""
    return bring_in(session, EVERYONE, {u: proof(ClientId(20) if u == 1 else u) for u in COMING})


@invited(
    "lots under a beacon of the server's own",
    refused_by="check_proof (InvalidProof)",
    checks=(names.SELECTION + "vrf_selection.check_proof",),
)
def replace_beacon(session: Session) -> str:
    """Server and colluders draw under a beacon value with which they win; the helper has read the published one."""
    own = VrfSelection(MEMBERS, RUN, Fraction(len(MEMBERS)), 5, SeedBeacon(bytes([1]) * 32))
    return bring_in(session, EVERYONE, {u: proof(u, selection=own) for u in COMING})


ATTACKS = (bring_in_unscheduled, bring_in_loser, show_another_round, show_another_client, replace_beacon)
