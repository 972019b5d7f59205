"""Requests out of their order: disclosure too early, without agreement, or again for another U3."""

from dordis.adversary import names
from dordis.adversary.attack import Attack, gained, recovered
from dordis.adversary.cast import BOTH, agreed
from dordis.adversary.session import Session, Trail
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg.messages import CollectInput, PrepareInput, RemoveNoise, Unmask


class UnmaskWithoutAgree(Attack):
    """Everyone but the victim signs U3; the victim is asked to disclose without having signed anything."""

    name = "Unmask without Agree"
    text = "The victim, in a round of the malicious mode, is asked to disclose for a U3 that it never saw nor signed."
    graphs = BOTH
    overlapping = (names.TURN, names.SAME_SURVIVORS)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Show it a real quorum's signatures."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.upload()
        victim, *others = session.u2
        session.unmask(session.u2, session.agree(session.u2, others), [victim])
        return "the victim disclosed for a U3 that it had not signed"


class DisclosureBeforeUpload(Attack):
    """The victim is asked for shares and seeds before its upload."""

    name = "disclosure before the upload"
    text = "The victim is asked to disclose for a U3 with it before it uploads: its seed would be known in advance."
    graphs = BOTH
    checks = (names.TURN,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """In the semi-honest mode, where no signature is asked for."""
        session = Session(agreed(graph, mode=SEMI_HONEST), trail)
        session.set_up()
        victim = session.lots()[0]
        seeds = session.unmask(session.u2, {}, [victim])[victim].seeds
        return gained(bool(seeds), "the victim's seed was disclosed before it uploaded", "the rule", "no seed was due")


class UploadBeforeShares(Attack):
    """The upload is asked for before the shares are delivered, when there is nobody yet to mask with."""

    name = "upload before the set-up is complete"
    text = (
        "The victim is asked to upload before U2 is known to it, so that it masks with nobody; the rest is as always."
    )
    graphs = BOTH
    checks = (names.SETUP_COMPLETE,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Complete the set-up after the victim's upload."""
        session = Session(agreed(graph), trail)
        session.advertise()
        session.share()
        victim, *others = session.u2
        session.upload([victim])
        session.open()
        session.upload(others)
        _, masks = session.disclosed(session.u2, session.finish(session.u2))
        return recovered(session, victim, session.stripped(victim, session.rebuild(masks[victim])))


class MaskedBeforeShares(Attack):
    """The victim is asked to prepare its upload when there is nobody yet to mask with; the upload comes in time."""

    name = "masking before the set-up is complete"
    text = "The victim is asked to prepare its upload before U2 is known to it; what it kept is uploaded in its turn."
    graphs = BOTH
    checks = (names.SETUP_COMPLETE,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Complete the set-up between the two requests."""
        session = Session(agreed(graph), trail)
        session.advertise()
        session.share()
        victim = session.u2[0]
        session.ask(victim, PrepareInput(0))
        session.open()
        session.upload()
        _, masks = session.disclosed(session.u2, session.finish(session.u2))
        return recovered(session, victim, session.stripped(victim, session.rebuild(masks[victim])))


class AgreeAfterUnmask(Attack):
    """Stage 3, which may be left out in the semi-honest mode, comes after stage 4 and replaces the stored U3."""

    name = "an earlier stage after a later one"
    text = "After U3 is unmasked, stage 3 names a larger U3, so that stage 5 gives seeds of noise that must stay."
    graphs = BOTH
    checks = (names.TURN,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Unmask without the last by lot, then claim that it uploaded."""
        session = Session(agreed(graph, mode=SEMI_HONEST), trail)
        session.set_up()
        session.upload()
        order = session.lots()
        u3, victim = [u for u in order if u != order[-1]], order[4]
        answers = session.finish(u3)
        due = session.due(u3)
        total = session.subtract_noise(session.total(u3, answers), [answers[u].seeds[0] for u in sorted(due)])
        shares = {}
        for u in sorted(u3):
            session.ask(u, session.agreement(order))
            given = session.ask(u, RemoveNoise(0, session.parameters.pack([victim]))).shares
            if given:
                shares[u] = given
        stripped = session.subtract_noise(total, [session.rebuild(shares)])
        return gained(
            bool((stripped == session.true_sum(u3, {*due, victim})).all()),
            "removed noise of the victim that must stay in the sum",
            "the arithmetic",
            "the noise was not removed",
        )


class NoSuchChunk(Attack):
    """A chunk that the round does not have."""

    name = "a chunk that does not exist"
    text = "The victim is asked to upload a chunk beyond the last, whose secrets and noise nobody agreed on."

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask for chunk 1 of a round of one."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.ask(session.u2[0], CollectInput(1))
        return "the victim uploaded a chunk that does not exist"


class BothHalvesInTwoRequests(Attack):
    """Two U3, one with the victim and one without, are put to all the others."""

    name = "both halves of a mask, in two requests"
    text = "Everyone is asked to unmask twice, once with the victim in U3 and once without: both halves of its mask."
    graphs = BOTH
    overlapping = (names.CLAIM, names.TURN)

    def attempt(self, graph: str, trail: Trail) -> str:
        """The victim uploads in time and is left out, then brought back."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.upload()
        victim, *others = session.u2
        keys, _ = session.disclosed(others, session.finish(others))
        _, masks = session.disclosed(session.u2, session.finish(session.u2, without=[victim]))
        peers = {u: session.masking_key(u) for u in session.parameters.neighbourhoods[victim] - {victim}}
        private, self_mask = session.rebuild(keys[victim]), session.rebuild(masks[victim])
        return recovered(session, victim, session.stripped(victim, self_mask, private, peers))


class LateUpload(Attack):
    """An upload that comes after its sender was declared dropped, and whose masking key is known by then."""

    name = "a late upload"
    text = "The victim's upload arrives after U3 was unmasked without it; the server asks for its self-mask as well."
    graphs = BOTH
    overlapping = (names.CLAIM, names.TURN)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask for the upload only after the first unmasking."""
        session = Session(agreed(graph), trail)
        session.set_up()
        victim, *others = session.u2
        session.upload(others)
        keys, _ = session.disclosed(others, session.finish(others))
        session.upload([victim])
        _, masks = session.disclosed(session.u2, session.finish(session.u2, without=[victim]))
        peers = {u: session.masking_key(u) for u in session.parameters.neighbourhoods[victim] - {victim}}
        private, self_mask = session.rebuild(keys[victim]), session.rebuild(masks[victim])
        return recovered(session, victim, session.stripped(victim, self_mask, private, peers))


class NoiseBeforeUnmasking(Attack):
    """Stage 5 before stage 4."""

    name = "noise removal before unmasking"
    text = "After U3 is signed, and before a quorum is shown, the victim is asked for its shares of others' seeds."
    graphs = BOTH
    checks = (names.TURN,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Skip the request that shows the quorum."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.upload()
        owing = session.lots()[0]
        victim = next(u for u in session.u2 if u != owing and u in session.parameters.neighbourhoods[owing])
        session.agree(session.u2, [victim])
        session.ask(victim, RemoveNoise(0, session.parameters.pack([owing])))
        return "the victim gave a share of a seed before any quorum agreed on U3"


class SecondSurvivorSet(Attack):
    """A client that was asked for a second U3 goes on as if nothing had happened."""

    name = "another request at a stage that was answered"
    text = (
        "The victim is asked for a second U3 and, if it does not leave, stays in a round whose server is caught lying."
    )
    graphs = BOTH
    checks = (names.SAME_REQUEST,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """In the semi-honest mode, where the first U3 is not signed."""
        session = Session(agreed(graph, mode=SEMI_HONEST), trail)
        session.set_up()
        session.upload()
        victim, *others = session.u2
        session.unmask(session.u2, {}, [victim])
        session.ask(victim, Unmask(0, session.parameters.pack([victim, *others[1:]])))
        return "the victim answered a request that contradicts the one before"


ATTACKS: tuple[Attack, ...] = (
    UnmaskWithoutAgree(),
    DisclosureBeforeUpload(),
    UploadBeforeShares(),
    MaskedBeforeShares(),
    AgreeAfterUnmask(),
    NoiseBeforeUnmasking(),
    NoSuchChunk(),
    BothHalvesInTwoRequests(),
    LateUpload(),
    SecondSurvivorSet(),
)
