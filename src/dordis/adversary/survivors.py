"""False statements about U3, and signatures on it that are not what they seem."""

from abc import abstractmethod
from collections.abc import Collection, Mapping

from dordis.adversary import names
from dordis.adversary.attack import Attack, gained
from dordis.adversary.cast import BOTH, OUTSIDER, agreed
from dordis.adversary.session import Session, Trail
from dordis.protocol import ClientId
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg import statements
from dordis.protocols.secagg.messages import Unmask, Unmasking


class AnotherSetThanSigned(Attack):
    """The victim signs one U3 and is asked to disclose for another, which a quorum of the others has signed."""

    name = "Unmask for another U3 than the one signed"
    text = "The victim's signature is on one U3, and with a real quorum's on another it is asked to disclose for that."
    graphs = BOTH
    checks = (names.SAME_SURVIVORS,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Show the victim one dropout fewer."""
        session = Session(agreed(graph), trail)
        session.set_up()
        session.upload()
        victim, *others = session.u2
        smaller = [victim, *others[:-1]]
        session.agree(session.u2, [victim])
        session.unmask(smaller, session.agree(smaller, others[:-1]), [victim])
        return "the victim disclosed for a U3 while its signature is on another"


class NeverUploaded(Attack):
    """A client that never uploaded is named a survivor, so that fewer seem lost and more noise seems due."""

    name = "U3 with a client that never uploaded"
    text = "A silent client is named in U3 with an invented token: the others would disclose noise that must stay."
    graphs = BOTH
    checks = (names.TOKENS,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Name everyone, though the last by lot is silent."""
        session = Session(agreed(graph), trail)
        session.set_up()
        order = session.lots()
        uploaded = order[:-1]
        session.upload(uploaded)
        answers = session.unmask(order, session.agree(order, uploaded, forged=order[-1:]), uploaded)
        extra = {u for u, answer in answers.items() if answer.seeds} - session.due(uploaded)
        return gained(
            bool(extra), f"{len(extra)} clients disclosed noise that must stay", "the rule", "no seed was due"
        )


class UnderstatedDropouts(Attack):
    """More than T are lost, and a silent client is named to make it T."""

    name = "understated |D|: a silent client is counted in"
    text = "More than T clients are lost; naming one of them a survivor makes the others disclose all the same."
    graphs = BOTH
    checks = (names.TOKENS,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """T = 1: two are lost, one is admitted."""
        session = Session(agreed(graph, tolerance=1), trail)
        session.set_up()
        uploaded, silent = session.u2[:-2], session.u2[-2]
        session.upload(uploaded)
        claimed = [*uploaded, silent]
        session.unmask(claimed, session.agree(claimed, uploaded, forged=[silent]), uploaded)
        return "the survivors disclosed although more clients are lost than the noise tolerates"


class UnderstatedByOutsider(Attack):
    """The one that is counted in is not even in U2, so that nobody masked with it and the sum comes out."""

    name = "understated |D|: a client outside U2 is counted in"
    text = "A U3 with a client outside U2 hides that more than T are lost: the sum comes out with too little noise."
    graphs = BOTH
    checks = (names.SUBSET,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """T = 1: one never shared, another did not upload."""
        session = Session(agreed(graph, tolerance=1, mode=SEMI_HONEST), trail)
        session.advertise()
        *present, missing = session.parameters.clients
        session.share(present)
        session.open()
        uploaded = present[:-1]
        session.upload(uploaded)
        answers = session.unmask([*uploaded, missing], {}, uploaded)
        return too_little_noise(session, uploaded, answers, [*uploaded, missing])


class TooManyDropouts(Attack):
    """More than T are lost, and the server says so and goes on."""

    name = "|D| > T"
    text = "More clients are lost than the noise tolerates, and the server asks to unmask what is left all the same."
    graphs = BOTH
    checks = (names.TOLERATED,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """T = 1: two are lost."""
        session = Session(agreed(graph, tolerance=1), trail)
        session.set_up()
        uploaded = session.u2[:-2]
        session.upload(uploaded)
        return too_little_noise(session, uploaded, session.finish(uploaded), uploaded)


class UnmaskWithSignatures(Attack):
    """The victim has signed U3; the server shows it something else than a quorum's signatures."""

    graphs = BOTH
    checks = (names.VERIFY, names.QUORUM_SIGNED)

    @abstractmethod
    def signatures(self, session: Session, victim: ClientId) -> Mapping[int, bytes]:
        """Return what is shown."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask the victim alone: nobody else has signed this U3 unless `signatures` asks them to."""
        session = Session(agreed(graph, ends=[4, 8]), trail)
        session.set_up()
        session.upload()
        session.upload(chunk=1)
        victim = session.u2[0]
        session.agree(session.u2, [victim], chunk=1)
        bitmap = session.parameters.pack(session.u2)
        session.ask(victim, Unmask(1, bitmap, dict(sorted(self.signatures(session, victim).items()))))
        return "the victim disclosed for a U3 that no quorum has signed"


class TooFewSignatures(UnmaskWithSignatures):
    """One signature fewer than the quorum."""

    name = "one signature fewer than the quorum"
    text = "With a quorum less one two different U3 can both be signed, and the victim disclose for the wrong one."
    checks = (names.ENOUGH, names.QUORUM_SIGNED)

    def signatures(self, session: Session, victim: ClientId) -> Mapping[int, bytes]:
        """Return good ones, too few."""
        return session.agree(session.u2, session.u2[1 : session.parameters.quorum], chunk=1)


class ForgedSignatures(UnmaskWithSignatures):
    """Signatures that nobody made."""

    name = "forged signatures on U3"
    text = "The server invents the signatures of a quorum, and the victim discloses for a U3 of the server's choice."

    def signatures(self, session: Session, victim: ClientId) -> Mapping[int, bytes]:
        """Sign with keys of the server's own."""
        made = session.sign(OUTSIDER, statements.survivors(session.parameters, 1, session.parameters.pack(session.u2)))
        return {int(u): made for u in session.u2}


class SignaturesOfAnotherChunk(UnmaskWithSignatures):
    """The same U3, signed for the other chunk."""

    name = "signatures of another chunk"
    text = "A quorum signed the same U3 for the first chunk; the server shows these signatures for the second."

    def signatures(self, session: Session, victim: ClientId) -> Mapping[int, bytes]:
        """Collect them in chunk 0."""
        return session.agree(session.u2, session.u2[1:], chunk=0)


class SignaturesOfAnotherRound(UnmaskWithSignatures):
    """The same U3, signed in another round."""

    name = "signatures of another round"
    text = "The same clients signed the same U3 in an earlier round; the server shows these signatures again."

    def signatures(self, session: Session, victim: ClientId) -> Mapping[int, bytes]:
        """Run the other round up to there."""
        graph = BOTH[bool(session.parameters.degree)]
        earlier = Session(agreed(graph, ends=[4, 8], index=6), Trail())
        earlier.set_up()
        earlier.upload(chunk=1)
        return earlier.agree(earlier.u2, chunk=1)


class SignaturesOfAnotherType(UnmaskWithSignatures):
    """Signatures on keys, shown as signatures on U3."""

    name = "signatures of another type"
    text = "Everyone signed its keys and its shares; the server shows these signatures as ones on U3."

    def signatures(self, session: Session, victim: ClientId) -> Mapping[int, bytes]:
        """Take them from the advertisements and the shares."""
        return {int(u): (session.keys if u % 2 else session.shares)[u].signature for u in session.u2}


class SignerOutsideTheSet(UnmaskWithSignatures):
    """A colluder that is registered, but not in the round, signs U3."""

    name = "a signer outside U3"
    text = "A registered colluder outside the round makes up the quorum: outsiders could sign any number of U3."
    checks = (names.SUBSET, names.QUORUM_SIGNED)

    def signatures(self, session: Session, victim: ClientId) -> Mapping[int, bytes]:
        """Return good ones of U3, one too few, and the outsider's."""
        honest = session.agree(session.u2, session.u2[1 : session.parameters.quorum], chunk=1)
        statement = statements.survivors(session.parameters, 1, session.parameters.pack(session.u2))
        return {**honest, int(OUTSIDER): session.sign(OUTSIDER, statement)}


class BitOutsideTheClients(Attack):
    """A set with a member that U does not have."""

    name = "U3 with a client outside U"
    text = "The bitmap of U3 has a bit beyond the last client, to count in somebody who is not there."
    graphs = BOTH

    def attempt(self, graph: str, trail: Trail) -> str:
        """Set the bit after the last."""
        session = Session(agreed(graph, mode=SEMI_HONEST), trail)
        session.set_up()
        session.upload()
        session.ask(session.u2[0], Unmask(0, session.parameters.pack(session.u2) + b"\1"))
        return "the victim disclosed for a U3 with a client outside U"


def too_little_noise(
    session: Session, uploaded: Collection[ClientId], answers: Mapping[ClientId, Unmasking], u3: Collection[ClientId]
) -> str:
    """Say that the sum came out with less noise than it must keep, if it did."""
    total = session.total(u3, answers)
    plan = session.parameters.plans[0]
    noise, needed = len(uploaded) * plan.added, plan.kappa * plan.variance
    return gained(
        bool((total == session.true_sum(uploaded)).all()) and noise < needed,
        f"the sum came out with noise of variance {float(noise):.1f} instead of {float(needed):.1f}",
        "masks that the adversary does not know",
        "what came out is not the sum",
    )


ATTACKS: tuple[Attack, ...] = (
    AnotherSetThanSigned(),
    NeverUploaded(),
    UnderstatedDropouts(),
    UnderstatedByOutsider(),
    TooManyDropouts(),
    TooFewSignatures(),
    ForgedSignatures(),
    SignaturesOfAnotherChunk(),
    SignaturesOfAnotherRound(),
    SignaturesOfAnotherType(),
    SignerOutsideTheSet(),
    BitOutsideTheClients(),
)
