"""Different clients are shown different things: U2, U3, or the parameters of the round."""

from abc import abstractmethod
from collections.abc import Mapping

from dordis.adversary import names
from dordis.adversary.attack import Attack, gained, recovered
from dordis.adversary.cast import BOTH, COMPLETE, IDS, SPARE, SPARSE, agreed, forged
from dordis.adversary.session import Session, Trail
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters

Views = tuple[list[ClientId], list[ClientId], ClientId]
"""The U3 that a quorum is shown, the one that the victim is shown, and the victim."""


class TwoSurvivorSets(Attack):
    """The server takes the sum over one U3 and asks the victim about another, under which its noise is due."""

    graphs = BOTH
    checks = (names.QUORUM_SIGNED, names.ENOUGH)

    @abstractmethod
    def views(self, order: list[ClientId]) -> Views:
        """Choose the two sets, given U in the order in which noise is removed."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Unmask with all but the victim, then ask the victim with its own signature alone."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.upload()
        first, second, victim = self.views(session.lots())
        answers = session.finish(first, without=[victim])
        due = session.due(first)
        total = session.total(first, answers)
        seeds = [answers[u].seeds[0] for u in sorted(due)]
        lone = session.agree(second, [victim])
        seeds.append(session.unmask(second, lone, [victim])[victim].seeds[0])
        stripped = session.subtract_noise(total, seeds)
        return gained(
            bool((stripped == session.true_sum(first, {*due, victim})).all()),
            "removed noise of the victim that must stay in the sum",
            "the arithmetic",
            "the noise was not removed",
        )


class SurvivorSetsOfDifferentSize(TwoSurvivorSets):
    """One dropout fewer is claimed to the victim."""

    name = "two U3 of different size"
    text = "A quorum is shown a U3 with one dropout, the victim one with none: it would disclose noise that must stay."

    def views(self, order: list[ClientId]) -> Views:
        """With one dropout the first four are due, with none the first six: the fifth is the victim."""
        return [u for u in order if u != order[-1]], order, order[4]


class SurvivorSetsOfEqualSize(TwoSurvivorSets):
    """As many dropouts are claimed to the victim, but others."""

    name = "two U3 of equal size"
    text = "The victim is shown another dropout than the quorum: as the next by lot it would disclose noise in vain."

    def views(self, order: list[ClientId]) -> Views:
        """Without the last the first four are due, without the first the second to the fifth."""
        return [u for u in order if u != order[-1]], [u for u in order if u != order[0]], order[4]


class HiddenNeighbours(Attack):
    """The victim believes that its neighbours are lost and masks with nobody; everyone else believes it in U3."""

    name = "two U2: a client's neighbours are hidden from it"
    text = (
        "The victim is shown a U2 without its neighbours, all others a U3 with it: its update bears its own noise only."
    )
    graphs = (SPARSE,)
    checks = (names.NEIGHBOURS,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ten clients, k = 4, T = 4: as many neighbours as may be missing."""
        ids = (*IDS, *SPARE)
        session = Session(agreed(graph, clients=ids, degree=4, threshold=4, quorum=6, tolerance=4), trail)
        victim = ids[4]
        session.advertise()
        session.share()
        hidden = session.parameters.neighbourhoods[victim] - {victim}
        session.open([u for u in ids if u != victim])
        session.ask(victim, session.delivery(victim, [u for u in ids if u not in hidden]))
        session.upload()
        answers = session.finish(ids, without=[victim])
        _, masks = session.disclosed(ids, answers)
        update = session.stripped(victim, session.rebuild(masks[victim]))
        return recovered(session, victim, update)


class IsolatedClient(Attack):
    """On the complete graph the victim's U2 would have to be itself alone."""

    name = "two U2: a client is shown nobody else"
    text = "The victim is shown a U2 of itself alone and masks with nobody; all others unmask a U3 with it."
    graphs = (COMPLETE,)
    overlapping = (names.ENOUGH, names.TOLERATED, names.NEIGHBOURS)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Show everyone else the true U2."""
        session = Session(agreed(graph), trail)
        victim = session.parameters.clients[2]
        session.advertise()
        session.share()
        session.open([u for u in session.u2 if u != victim])
        session.ask(victim, session.delivery(victim, [victim]))
        session.upload()
        answers = session.finish(session.u2, without=[victim])
        _, masks = session.disclosed(session.u2, answers)
        return recovered(session, victim, session.stripped(victim, session.rebuild(masks[victim])))


class LostThenNamed(Attack):
    """A client is told that a peer is lost, and later that it survived: their masks do not cancel."""

    name = "two U2: a lost peer is named in U3"
    text = "The victim masks without a peer that is hidden from it, and is asked to sign and disclose for a U3 with it."
    graphs = BOTH
    checks = (names.SUBSET,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Hide one peer, which uploads like everyone else."""
        session = Session(agreed(graph), trail)
        session.advertise()
        session.share()
        victim, *others = session.u2
        session.open(others)
        hidden = min(session.parameters.neighbourhoods[victim] - {victim})
        session.ask(victim, session.delivery(victim, [u for u in session.u2 if u != hidden]))
        session.upload()
        session.finish(session.u2)
        return "the victim vouched for a U3 with a client that it was told is lost"


class TooManyMissing(Attack):
    """More than T are missing already in U2."""

    name = "U2 with more than T missing"
    text = "The victim is shown a U2 that lacks more than T clients: its upload would be summed with too little noise."
    graphs = BOTH
    checks = (names.TOLERATED,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """T = 1, two are missing."""
        session = Session(agreed(graph, tolerance=1), trail)
        session.advertise()
        session.share()
        victim, *_, first, second = session.u2
        session.ask(victim, session.delivery(victim, [u for u in session.u2 if u not in (first, second)]))
        session.upload([victim])
        return "the victim uploaded although more clients are lost than the noise tolerates"


class LeftOutOfMembers(Attack):
    """The victim is asked to upload in a round whose U2 leaves it out."""

    name = "U2 without the client itself"
    text = (
        "The victim is told that it is not in U2 and asked to upload all the same, into a sum that does not await it."
    )
    graphs = BOTH
    checks = (names.PRESENT,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Leave out the victim alone."""
        session = Session(agreed(graph), trail)
        session.advertise()
        session.share()
        victim = session.u2[0]
        session.ask(victim, session.delivery(victim, session.u2[1:]))
        session.upload([victim])
        return "the victim uploaded into a round that it is not in"


class TwoRounds(Attack):
    """Half of the clients are shown other parameters than the rest, and all are to end up in one sum."""

    overlapping = (names.KEYS_SIGNED, names.NOBODY_ACCUSED)

    @abstractmethod
    def others(self, parameters: Parameters) -> Parameters:
        """Return what the second half is shown."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Go on as far as the uploads."""
        session = Session(agreed(graph), trail)
        shown: Mapping[ClientId, Parameters] = dict.fromkeys(IDS[4:], self.others(session.parameters))
        session.advertise(shown=shown)
        session.share()
        session.open()
        session.upload()
        return "clients of two different rounds uploaded into one sum"


class DifferentParameters(TwoRounds):
    """Less noise for one half."""

    name = "different parameters for two clients"
    text = "Half of the clients are told a smaller noise variance, and the sum is to contain both halves."

    def others(self, parameters: Parameters) -> Parameters:
        """A quarter of the variance."""
        return forged(parameters, variances={0: "16"})


class DifferentModel(TwoRounds):
    """Another model for one half."""

    name = "a different model for two clients"
    text = "Half of the clients are given another model, made so that their updates stand out in the sum."

    def others(self, parameters: Parameters) -> Parameters:
        """Another digest."""
        return forged(parameters, model=b"a model made for the victim")


ATTACKS: tuple[Attack, ...] = (
    SurvivorSetsOfEqualSize(),
    SurvivorSetsOfDifferentSize(),
    HiddenNeighbours(),
    IsolatedClient(),
    LostThenNamed(),
    TooManyMissing(),
    LeftOutOfMembers(),
    DifferentParameters(),
    DifferentModel(),
)
