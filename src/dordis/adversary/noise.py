"""Noise that must stay, and seeds that are not the right ones."""

import msgspec

from dordis.adversary import names
from dordis.adversary.attack import Attack, gained
from dordis.adversary.cast import BOTH, agreed
from dordis.adversary.play import Deviant, SpoiledSum
from dordis.adversary.session import Session, Trail
from dordis.protocols.secagg.messages import RemoveNoise, Unmask
from dordis.simulation.exchange import Lost, nothing_lost


class SeedNotDue(Attack):
    """Stage 5 asks for the seed of a survivor that is silent, but keeps its noise under this U3."""

    name = "stage 5 for a seed that is not due"
    text = "The victim is silent at stage 4 and keeps its noise; the server asks its peers to rebuild the seed anyway."
    graphs = BOTH
    checks = (names.DUE,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """With one dropout the first four by lot are due: ask for the fifth."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.upload()
        order = session.lots()
        u3, victim = order[:-1], order[4]
        answers = session.finish(u3, without=[victim])
        due = session.due(u3)
        total = session.subtract_noise(session.total(u3, answers), [answers[u].seeds[0] for u in sorted(due)])
        request = RemoveNoise(0, session.parameters.pack([victim]))
        given = {u: session.ask(u, request).shares for u in sorted(answers)}
        seed = session.rebuild({u: shares for u, shares in given.items() if shares})
        return gained(
            bool((session.subtract_noise(total, [seed]) == session.true_sum(u3, {*due, victim})).all()),
            "removed noise of the victim that must stay in the sum",
            "the arithmetic",
            "the noise was not removed",
        )


class AnotherSeed(SpoiledSum):
    """A client discloses another seed than it used and committed to."""

    name = "a seed that does not match its commitment"
    text = "A client whose noise is due discloses another seed: the server would subtract noise that was never added."
    graphs = BOTH
    checks = (names.COMMITTED_SEED,)
    by = "ChunkServer._is_committed"

    def corrupt(self, session: Session) -> Lost:
        """Corrupt the first by lot."""
        liar = session.lots()[0]
        alter = lambda reply: msgspec.structs.replace(reply, seeds=dict.fromkeys(reply.seeds, bytes(32)))  # noqa: E731
        session.parties[liar] = Deviant(session.honest[liar], Unmask, alter)
        return nothing_lost


ATTACKS: tuple[Attack, ...] = (SeedNotDue(), AnotherSeed())
