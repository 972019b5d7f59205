"""Clients that lie to the network of a server: about a size, with bytes that are no answer, or by their time."""

import asyncio
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dordis import wire
from dordis.adversary import names
from dordis.adversary.attack import Attack
from dordis.adversary.participants import COMPLETE
from dordis.adversary.session import Session, foiled_unless
from dordis.errors import MalformedMessage
from dordis.federation.config import Deadlines
from dordis.network.deadlines import Patience
from dordis.network.exchange import NetworkExchange
from dordis.network.messages import Answered, Asked, Beside
from dordis.network.recorded import RecordedExchange
from dordis.network.state import ServerState
from dordis.protocol import ClientId, Message
from dordis.protocols.plaintext.messages import Begin, Contribute, Contribution
from dordis.rounds.invitation import PieceReceived, SendModel
from dordis.simulation.clock import run_virtually

STAGE, LATE, PIECES = 60.0, 59.0, 9
"""Seconds of a deadline, seconds after which the liar answers, and pieces of a model of 9 MiB."""
FIRST, SECOND = 8, 16


class Carrier:
    """What an exchange needs of a server, without one: it notes the sizes that are expected."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def expect(self, client: ClientId, id: int, beside: Beside, sum: int) -> None:
        """Note a size."""
        self.sizes.append(beside.size)

    def offer(self, data: wire.Bulk) -> Beside:
        """Offer nothing."""
        return Beside(len(data), bytes(32))

    def ignore(self, *_: Any) -> None:
        """Do nothing."""

    begin = merge = forget = withdraw = ignore


def exchange_with(liar: Any) -> tuple[NetworkExchange, Carrier]:
    """Return an exchange whose clients are all the same liar, which is called with what is asked."""
    carrier: Any = Carrier()
    patience = Patience(Deadlines(stage=STAGE, grace=STAGE))

    def send(u: ClientId, message: bytes) -> bool:
        liar(exchange, u, wire.decode(message, Asked))
        return True

    exchange = NetworkExchange(send, carrier, carrier, patience)
    return exchange, carrier


async def announce_twice(session: Session) -> list[int]:
    """Announce an upload, come again and announce another size; return the sizes that were expected."""
    asked: list[Asked] = []
    exchange, carrier = exchange_with(lambda _, u, request: asked.append(request))
    exchange.note(Begin(session.parameters))
    await exchange({session.victim: Contribute(0)})
    for size in (FIRST, SECOND):
        exchange.connected(session.victim)
        exchange.answered(session.victim, Answered(asked[0].id, wire.encode(Contribution(0, b"")), Beside(size, b"")))
    return carrier.sizes


def tell_two_sizes(session: Session) -> str:
    """A receive process that is told another size than it has received ends, and nobody is named."""
    session.trail.stage = "Contribute"
    sizes = run_virtually(announce_twice(session))
    foiled_unless(len(set(sizes)) > 1, "check_same_size", "the second announcement is taken for garbage, and named")
    return f"a body of {sizes[0]} bytes is added as one of {sizes[1]}"


def resume_after_garbage(session: Session) -> str:
    """Send garbage and wait for a restart of the server: what it kept of it must not stop the run."""
    session.trail.stage = "Begin"
    requests: dict[ClientId, Message] = {session.victim: Begin(session.parameters)}

    async def answered(state: ServerState) -> list[tuple[ClientId, Message]]:
        exchange, _ = exchange_with(lambda exchange, u, asked: exchange.answered(u, Answered(asked.id, b"garbage")))
        return list(await RecordedExchange(exchange, state)(requests))

    with TemporaryDirectory() as folder:
        for _ in range(2):
            state = ServerState(Path(folder))
            try:
                again = run_virtually(answered(state))
            except MalformedMessage:
                return "the server cannot read what it has kept, and the run never goes on"
            finally:
                state.end()
    foiled_unless(not again, "is_garbled", "garbage is garbage again, and its sender is named")
    return "the garbage is forgotten"


async def piece_by_piece(session: Session) -> float:
    """Send a model to a client that answers just in time; return the seconds that it took to give it up."""
    loop = asyncio.get_running_loop()

    def late(exchange: NetworkExchange, u: ClientId, asked: Asked) -> None:
        answer = Answered(asked.id, wire.encode(PieceReceived(0)))
        loop.call_later(LATE, lambda: exchange.answered(u, answer))

    exchange, _ = exchange_with(late)
    for piece in range(PIECES):
        replies = await exchange({session.victim: SendModel(piece, b"piece")})
        while exchange.is_waiting:
            await asyncio.sleep(1.0)
        if not list(replies):
            break
    return loop.time()


def answer_in_time(session: Session) -> str:
    """Answer every piece of the model just before the deadline, while everybody waits."""
    session.trail.stage = "SendModel"
    seconds = run_virtually(piece_by_piece(session))
    foiled_unless(seconds > 2 * STAGE, "left_for", f"the client is out after {seconds:g} seconds")
    return f"everybody waited for {seconds:g} seconds, where the deadline is {STAGE:g}"


on_complete = partial(Attack, graphs=(COMPLETE,))

ATTACKS = (
    on_complete(
        "a second announcement of another size",
        "A client announces its upload, comes again, and announces another size: receive processes end one by one.",
        tell_two_sizes,
        checks=(names.SAME_SIZE,),
    ),
    on_complete(
        "garbage before a restart of the server",
        "A client answers with garbage, and the server is stopped: what it kept cannot be read when it goes on.",
        resume_after_garbage,
        checks=(names.IS_GARBLED,),
    ),
    on_complete(
        "an answer just in time for every piece of the model",
        "A client answers every piece of the model just before the deadline, while all others wait.",
        answer_in_time,
        checks=(names.LEFT,),
    ),
)
