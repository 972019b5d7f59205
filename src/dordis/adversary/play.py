"""A round led by an honest server in which clients deviate: what does the sum look like then?"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any

from dordis import drive
from dordis.adversary.attack import Attack, Foiled
from dordis.adversary.cast import agreed, signing_keys
from dordis.adversary.session import Session, Trail
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.secagg import ChunkOutput, SecAggServer
from dordis.protocols.secagg.messages import REPLIES
from dordis.simulation.exchange import LocalExchange, Lost, Party, nothing_lost


class Deviant:
    """A client that answers honestly, except that `alter` changes its answers to one kind of request."""

    def __init__(self, party: Party, kind: type[Message], alter: Callable[[Any], Message]) -> None:
        self._party, self._kind, self._alter = party, kind, alter

    def handle(self, request: Message) -> Message:
        """Answer, or lie."""
        reply = self._party.handle(request)
        return self._alter(reply) if isinstance(request, self._kind) else reply


def play(session: Session, lost: Lost = nothing_lost) -> ChunkOutput:
    """Run the round of a session, of one chunk, with an honest server; note the secrets for the examiner."""
    local = LocalExchange(session.parties, REPLIES, lost)

    def exchange(requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        session.trail.stage = type(next(iter(requests.values()))).__name__
        return local(requests)

    (output,) = drive.run(SecAggServer(session.parameters, signing_keys()), exchange)
    session.secrets = {u: client.state.secrets for u, client in session.honest.items()}
    return output


class SpoiledSum(Attack):
    """A dishonest client tries to make the server take a wrong sum for the right one."""

    by = "correction of wrong shares"

    @abstractmethod
    def corrupt(self, session: Session) -> Lost:
        """Replace parties of the session by dishonest ones; return what is lost on the way."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Run the round and compare."""
        session = Session(agreed(graph), trail)
        output = play(session, self.corrupt(session))
        if (output.total == self.expected(session, output)).all():
            raise Foiled(self.by, f"the sum is right, and {len(output.blame)} pairs are to blame")
        return "the server took a wrong sum for the right one"

    def expected(self, session: Session, output: ChunkOutput) -> Any:
        """Return the sum with just the noise that the output says is left."""
        removed: Collection[ClientId] = session.due(output.survivors) - output.stayed.keys()
        return session.true_sum(output.survivors, removed)
