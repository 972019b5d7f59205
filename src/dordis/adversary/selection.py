"""Clients that were not selected as they should be."""

from abc import abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dordis.adversary import names
from dordis.adversary.attack import Attack
from dordis.adversary.cast import (
    IDS,
    OUTSIDER,
    RUN,
    SPARE,
    SPARSE,
    agreed,
    honest_client,
    keys_of,
    random_vector,
    registry,
)
from dordis.adversary.owners import NEW_RUN, PERMISSIVE, allowing, careful
from dordis.adversary.session import Trail, deliver
from dordis.crypto import vrf
from dordis.federation.beacon import SeedBeacon
from dordis.federation.policy import Policy
from dordis.federation.selection import Balanced, Selection, Uniform, Verifiable
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg.messages import AdvertiseKeys, Advertisement

INDEX = 7
BEACON = SeedBeacon(bytes(32))
EVERYONE = Verifiable(registry(), RUN, Fraction(len(registry())), 5, BEACON)
"""A lottery that everyone wins: what is wrong then is not the lot."""
LOTTERY = Verifiable(registry(), RUN, Fraction(len(registry()), 2), 2, BEACON)
"""A lottery that half of them win."""
TURNS = Balanced(registry(), RUN, 8, 5)

Shown = tuple[ClientId, Parameters, Mapping[int, bytes]]
"""A victim, and the parameters and proofs that it is shown."""


def proofs_of(clients: tuple[ClientId, ...], index: int = INDEX) -> dict[int, bytes]:
    """Return good proofs."""
    return {int(u): vrf.prove(keys_of(u).vrf, EVERYONE.alpha(index)) for u in sorted(clients)}


class FalseSelection(Attack):
    """A client verifies U before it sends anything."""

    selection: Selection = EVERYONE
    policy: Policy = PERMISSIVE

    @abstractmethod
    def shown(self) -> Shown:
        """Return the victim and what it is shown."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask it for its keys."""
        victim, parameters, proofs = self.shown()
        owner = careful(victim, self.policy, self.selection, beacon=BEACON)
        client = honest_client(victim, random_vector(parameters), owner)
        deliver(client, AdvertiseKeys(parameters, dict(sorted(proofs.items()))), Advertisement, trail)
        return "the victim entered a round whose clients were not selected as they should be"


def a_round(**changes: Any) -> Parameters:
    """Return good parameters with the published beacon."""
    return agreed("complete", **({"beacon": BEACON.value(INDEX)} | changes))


class ProofOfAnotherRound(FalseSelection):
    """A lot of one round in another."""

    name = "a VRF proof of another round"
    text = "A colluder shows the lot of a round in which it was selected in one in which it was not."
    checks = (names.SELECTION + "check_proof",)

    def shown(self) -> Shown:
        """Replace the last one's proof."""
        last = IDS[-1]
        return IDS[0], a_round(), proofs_of(IDS) | {int(last): proofs_of((last,), INDEX - 1)[last]}


class ProofByAnotherKey(FalseSelection):
    """A lot of another client."""

    name = "a VRF proof by another key"
    text = "A colluder that was not selected shows the proof of another client as its own."
    checks = (names.SELECTION + "check_proof",)

    def shown(self) -> Shown:
        """Replace the last one's proof."""
        return IDS[0], a_round(), proofs_of(IDS) | {int(IDS[-1]): proofs_of((OUTSIDER,))[OUTSIDER]}


class LotAboveTheThreshold(FalseSelection):
    """A client whose lot is too high."""

    name = "a lot that is not below the threshold"
    text = "The server brings in a client of its own that lost the draw, with a true proof of its lot."
    checks = (names.SELECTION + "check_threshold",)
    selection = LOTTERY

    def shown(self) -> Shown:
        """Add one loser to all winners."""
        everyone = sorted((*IDS, *SPARE, OUTSIDER))
        won = [u for u in everyone if LOTTERY.draw(keys_of(u), INDEX) is not None]
        loser = next(u for u in everyone if u not in won)
        clients = tuple(sorted((*won, loser)))
        few = {"threshold": len(clients), "tolerance": 0}
        return won[0], a_round(clients=clients, **few), proofs_of(clients)


class AnotherBeacon(FalseSelection):
    """The graph is drawn from a beacon of the server's choice."""

    name = "a beacon of the server's own"
    text = "The server replaces the round's beacon, on which the neighbours depend, by one that suits its colluders."
    checks = (names.BEACON,)

    def shown(self) -> Shown:
        """Use the next round's."""
        return IDS[0], a_round(beacon=BEACON.value(INDEX + 1)), proofs_of(IDS)


class AnotherCircle(FalseSelection):
    """The same where clients are not drawn by lot, and nothing but the neighbours depends on the beacon."""

    name = "a circle of the server's own"
    text = "Clients come in turn; the server replaces the beacon that places them on the circle of SecAgg+."
    graphs = (SPARSE,)
    checks = (names.BEACON,)
    selection = TURNS
    policy = allowing(colluders=0)

    def shown(self) -> Shown:
        """Use the next round's."""
        due = tuple(sorted(TURNS.window(INDEX)))
        return due[0], agreed(SPARSE, clients=due, beacon=BEACON.value(INDEX + 1)), {}


class AnotherRun(FalseSelection):
    """A run id that was chosen after the beacon was known."""

    name = "a run id of the server's own"
    text = "The server tries run ids until its colluders are selected, after the beacon is known."
    checks = (names.SELECTION + "check_run",)

    def shown(self) -> Shown:
        """Use another run id with the proofs of the right one."""
        return IDS[0], a_round(run=NEW_RUN), proofs_of(IDS)


class SmallCohort(FalseSelection):
    """Most of those selected are left out."""

    name = "most of the selected left out"
    text = "The server leaves selected clients out until the victim is among few, most of them colluders."
    checks = (names.SELECTION + "check_cohort",)

    def shown(self) -> Shown:
        """Four clients where five are the least."""
        clients = IDS[:4]
        return IDS[0], a_round(clients=clients, threshold=3, tolerance=1), proofs_of(clients)


class ProofsOfOthers(FalseSelection):
    """Proofs of clients that are not in U."""

    name = "proofs of clients that are not in U"
    text = "Proofs of more clients than are in U make the cohort look like one that it is not."
    checks = (names.SELECTION + "check_complete",)

    def shown(self) -> Shown:
        """Add the outsider's."""
        return IDS[0], a_round(), proofs_of((*IDS, OUTSIDER))


class SelectedWithoutMe(FalseSelection):
    """U does not name the victim."""

    name = "a selection without the client itself"
    text = "A client is asked into a round to which others were selected, to be used where nobody expects it."
    overlapping = (names.MEMBER, names.SELECTION + "check_member")

    def shown(self) -> Shown:
        """Show the outsider a good round of the others."""
        return OUTSIDER, a_round(), proofs_of(IDS)


class NotDueYet(FalseSelection):
    """Under `balanced` the server brings in a client whose turn it is not."""

    name = "a client out of its turn"
    text = "The server brings a colluder into a round in which the public order does not have it."
    checks = (names.SELECTION + "check_window",)
    selection = TURNS

    def shown(self) -> Shown:
        """Replace one who is due by one who is not."""
        due = sorted(TURNS.window(INDEX))
        other = next(u for u in registry() if u not in due)
        return due[0], a_round(clients=tuple(sorted((*due[:-1], other)))), {}


class UnverifiableSelection(FalseSelection):
    """In the malicious mode clients are drawn by the server alone."""

    name = "a selection that nobody can verify"
    text = "The server draws the clients itself in the malicious mode, where it could draw its colluders."
    checks = (names.SELECTION + "check_semi_honest",)
    selection = Uniform(8, bytes(32))

    def shown(self) -> Shown:
        """Show good parameters."""
        return IDS[0], a_round(), {}


ATTACKS: tuple[Attack, ...] = (
    ProofOfAnotherRound(),
    ProofByAnotherKey(),
    LotAboveTheThreshold(),
    AnotherBeacon(),
    AnotherCircle(),
    AnotherRun(),
    SmallCohort(),
    ProofsOfOthers(),
    SelectedWithoutMe(),
    NotDueYet(),
    UnverifiableSelection(),
)
