"""The same or another request again: to a client that was restarted, by a server that was, or from another time."""

from abc import abstractmethod
from copy import deepcopy

from dordis.adversary import names
from dordis.adversary.attack import Attack, gained
from dordis.adversary.cast import BOTH, agreed, honest_client
from dordis.adversary.session import Session, Trail
from dordis.errors import UnexpectedRequest
from dordis.protocol import ClientId, MemoryJournal, Message
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg import SecAggClient
from dordis.protocols.secagg.messages import DeliverShares, RemoveNoise, Unmask

ONE_ANSWER = "the journal"


def journalled(session: Session, u: ClientId) -> MemoryJournal:
    """Give a client, before it begins, a journal that outlives it."""
    journal = MemoryJournal()
    session.honest[u] = honest_client(u, session.inputs[u], journal=journal)
    session.parties[u] = session.honest[u]
    return journal


def restarted(session: Session, u: ClientId, journal: MemoryJournal) -> SecAggClient:
    """Restore a client from a copy of its state as it is now, with its journal."""
    state = deepcopy(session.honest[u].state)
    return honest_client(u, session.inputs[u], state=state, journal=journal)


class SameRequestAgain(Attack):
    """A byte-identical request again, in the hope of a second, different answer."""

    name = "the same request again"
    text = "The victim is asked to share its secrets twice: two sharings of one secret, among different holders."
    graphs = BOTH
    overlapping = (names.CLAIM, names.TURN)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask for the shares, which are drawn at random, again."""
        session = Session(agreed(graph), trail)
        session.advertise()
        victim = session.parameters.clients[0]
        first, second = (session.ask(victim, session.broadcast()) for _ in range(2))
        return gained(first != second, "a second set of shares", ONE_ANSWER, "the second answer is the first")


class SameRequestAfterRestart(Attack):
    """The same, to a client that was restored from a copy of its state from before the answer."""

    name = "the same request after a restart from older state"
    text = "The victim, restored from before it shared its secrets, is asked to share them again: two sharings."
    graphs = BOTH
    checks = (names.CLAIM,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Copy the state before stage 1."""
        session = Session(agreed(graph), trail)
        victim = session.parameters.clients[0]
        journal = journalled(session, victim)
        session.advertise()
        older = restarted(session, victim, journal)
        first = session.ask(victim, session.broadcast())
        session.parties[victim] = older
        second = session.ask(victim, session.broadcast())
        return gained(first != second, "a second set of shares", ONE_ANSWER, "the second answer is the first")


class AnotherRequestAfterRestart(Attack):
    """Another U3, to a client that was restored from a copy of its state from before the first."""

    name = "another request after a restart from older state"
    text = (
        "The victim, restored from before it unmasked, is asked for another U3: both its shares of one client's mask."
    )
    graphs = BOTH
    checks = (names.CLAIM,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """In the semi-honest mode, where the journal alone stands in the way."""
        session = Session(agreed(graph, mode=SEMI_HONEST), trail)
        victim = session.parameters.clients[0]
        journal = journalled(session, victim)
        session.set_up()
        session.upload()
        older = restarted(session, victim, journal)
        target = min(session.parameters.neighbourhoods[victim] - {victim})
        others = [u for u in session.u2 if u != target]
        _, masks = session.disclosed(session.u2, session.unmask(session.u2, {}, [victim]))
        session.parties[victim] = older
        keys, _ = session.disclosed(others, session.unmask(others, {}, [victim]))
        both = victim in masks[target] and victim in keys[target]
        return gained(both, "both shares of one client's mask", ONE_ANSWER, "only one half was disclosed")


class RestoredAfterLeaving(Attack):
    """A client that left the round is restored from a copy of its state from before."""

    name = "a client restored after it left the round"
    text = "The victim caught the server, left and erased its secrets; a copy of its older state is to go on instead."
    graphs = BOTH
    checks = (names.CLAIM,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Make the victim leave by a request out of turn."""
        session = Session(agreed(graph), trail)
        victim = session.parameters.clients[0]
        journal = journalled(session, victim)
        session.set_up()
        older = restarted(session, victim, journal)
        try:
            session.ask(victim, RemoveNoise(0, session.parameters.pack([victim])))
        except UnexpectedRequest:
            session.parties[victim] = older
        session.upload([victim])
        return "the victim uploaded after it had left the round"


class StateWithoutJournal(Attack):
    """A client that is restored without what it remembers of its answers."""

    name = "state restored without its journal"
    text = "The victim's device is made to restore its state without the journal, so that it could answer twice."

    def attempt(self, graph: str, trail: Trail) -> str:
        """Restore it after it advertised its keys."""
        session = Session(agreed(graph), trail)
        session.advertise()
        victim = session.parameters.clients[0]
        honest_client(victim, session.inputs[victim], state=deepcopy(session.honest[victim].state))
        return "the client runs without a journal"


class RestartedServer(Attack):
    """A server that forgot what it asked begins a stage of the same round anew, with other content."""

    graphs = BOTH
    overlapping = (names.CLAIM, names.TURN)

    @abstractmethod
    def requests(self, session: Session) -> tuple[Message, Message]:
        """Return the request before and the one after the restart."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask before and after."""
        session = Session(agreed(graph), trail)
        session.advertise()
        before, after = self.requests(session)
        victim = session.parameters.clients[0]
        first, second = session.ask(victim, before), session.ask(victim, after)
        return gained(first != second, "two answers at one stage", ONE_ANSWER, "the second answer is the first")


class RestartedAtShareKeys(RestartedServer):
    """U1 has lost a client since."""

    name = "a server that restarts and shares keys again"
    text = "After a restart the server has another U1 and asks for shares again: two sharings of every secret."

    def requests(self, session: Session) -> tuple[Message, Message]:
        """Lose the last client."""
        before = session.broadcast()
        session.keys.pop(session.parameters.clients[-1])
        return before, session.broadcast()


class RestartedAtAgree(RestartedServer):
    """U3 has lost a client since."""

    name = "a server that restarts and agrees again"
    text = "After a restart the server has another U3 and asks to sign it: the victim's signature would be on two sets."

    def requests(self, session: Session) -> tuple[Message, Message]:
        """Leave the last client out."""
        session.share()
        session.open()
        session.upload()
        return session.agreement(session.u2), session.agreement(session.u2[:-1])


class EarlierRound(Attack):
    """Shares that were sent in another round."""

    name = "shares of an earlier round"
    text = "The victim is given ciphertexts of an earlier round, whose secrets the server may know by now."
    graphs = BOTH
    checks = (names.NOBODY_ACCUSED,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Deliver what the same senders sent to the victim one round before."""
        earlier = Session(agreed(graph, index=6), Trail())
        earlier.advertise()
        earlier.share()
        session = Session(agreed(graph), trail)
        session.advertise()
        session.share()
        victim = session.u2[0]
        due, sent = session.delivery(victim), {int(u): reply.ciphertexts for u, reply in earlier.shares.items()}
        old = {u: sent[u].get(victim) or max(sent[u].values()) for u in due.ciphertexts}
        session.ask(victim, DeliverShares(due.members, old))
        session.upload([victim])
        return "the victim uploaded on the strength of old shares"


class EarlierAdvertisement(Attack):
    """Keys, with their signature, that a peer showed in another round."""

    name = "keys of an earlier round"
    text = "The victim is shown a peer's signed keys of an earlier round, whose private halves the server may have."
    graphs = BOTH
    checks = (names.KEYS_SIGNED, names.VERIFY)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Replace one peer's keys."""
        earlier = Session(agreed(graph, index=6), Trail())
        earlier.advertise()
        session = Session(agreed(graph), trail)
        session.advertise()
        victim, *_, peer = session.parameters.clients
        session.keys[peer] = earlier.keys[peer]
        session.share([victim])
        return "the victim shared its secrets with a key of an earlier round"


class EarlierChunk(Attack):
    """The request of stage 4 of one chunk, altered to name the other."""

    name = "a request of an earlier chunk"
    text = (
        "The victim, having unmasked the first chunk only, is asked at once to unmask the second, without its upload."
    )
    graphs = BOTH
    checks = (names.TURN,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """In the semi-honest mode, where no signature is asked for."""
        session = Session(agreed(graph, mode=SEMI_HONEST, ends=[4, 8]), trail)
        session.set_up()
        session.upload()
        victim = session.u2[0]
        session.unmask(session.u2, {}, [victim])
        session.ask(victim, Unmask(1, session.parameters.pack(session.u2)))
        return "the victim unmasked a chunk that it had not uploaded"


ATTACKS: tuple[Attack, ...] = (
    SameRequestAgain(),
    SameRequestAfterRestart(),
    AnotherRequestAfterRestart(),
    RestoredAfterLeaving(),
    StateWithoutJournal(),
    RestartedAtShareKeys(),
    RestartedAtAgree(),
    EarlierRound(),
    EarlierAdvertisement(),
    EarlierChunk(),
)
