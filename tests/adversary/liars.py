"""Clients lie to the server's network layer: about sizes, with garbage, or by answering as late as possible."""

import asyncio
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dordis import wire
from dordis.config.schema import Deadlines
from dordis.errors import MalformedMessage
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.exchange import NetworkExchange
from dordis.network.messages import BodyInfo, Reply, Request
from dordis.network.resumable_rounds import ResumableExchange, RoundStore
from dordis.protocol import ClientId, Message
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.plaintext import Begin, Contribute, Contribution
from dordis.rounds.invitation import PieceReceived, SendModel
from dordis.simulation.virtual_devices import run_virtually
from tests.adversary import names
from tests.adversary.attack import Attack
from tests.adversary.participants import COMPLETE
from tests.adversary.session import Session, foiled_unless

STAGE, LATE, PIECES = 60.0, 59.0, 9
"""Seconds of a deadline, seconds after which the liar answers, and pieces of a model of 9 MiB."""
FIRST, SECOND = 8, 16


class Carrier:
    """What an exchange needs of a server, without one: it notes the sizes that are expected."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def expect(self, client: ClientId, id: int, info: BodyInfo) -> None:
        """Note a size."""
        self.sizes.append(info.size)

    def offer(self, data: wire.Bulk) -> BodyInfo:
        """Offer nothing."""
        return BodyInfo(len(data), bytes(32))

    def ignore(self, *_: Any) -> None:
        """Do nothing."""

    begin_round = forget = withdraw = ignore


def exchange_with(liar: Any) -> tuple[NetworkExchange, Carrier]:
    """Return an exchange whose clients are all the same liar, which is called with what is asked."""
    carrier: Any = Carrier()
    patience = AdaptiveDeadlines(Deadlines(stage=STAGE, grace=STAGE))

    def send(u: ClientId, message: bytes) -> bool:
        liar(exchange, u, wire.decode(message, Request))
        return True

    exchange = NetworkExchange(send, carrier, carrier, patience)
    return exchange, carrier


async def announce_twice(session: Session) -> list[int]:
    """Announce an upload, come again and announce another size; return the sizes that were expected."""
    asked: list[Request] = []
    exchange, carrier = exchange_with(lambda _, u, request: asked.append(request))
    exchange.prepare(Begin(session.parameters))
    await exchange({session.victim: Contribute(0)})
    for size in (FIRST, SECOND):
        exchange.resume_client(session.victim)
        exchange.take_reply(session.victim, Reply(asked[0].id, wire.encode(Contribution(0, b"")), BodyInfo(size, b"")))
    return carrier.sizes


def tell_two_sizes(session: Session) -> str:
    """An upload of another size than announced first would be taken for the announced one."""
    session.trail.stage = "Contribute"
    sizes = run_virtually(announce_twice(session))
    foiled_unless(len(set(sizes)) > 1, "check_same_size", "the second announcement is taken for garbage, and named")
    return f"a body of {sizes[0]} bytes is added as one of {sizes[1]}"


def resume_after_garbage(session: Session) -> str:
    """Send garbage and wait for a restart of the server: what it kept of it must not stop the run."""
    session.trail.stage = "Begin"
    requests: dict[ClientId, Message] = {session.victim: Begin(session.parameters)}

    async def answered(state: RoundStore) -> list[tuple[ClientId, Message]]:
        exchange, _ = exchange_with(lambda exchange, u, asked: exchange.take_reply(u, Reply(asked.id, b"garbage")))
        return list(await ResumableExchange(exchange, state)(requests))

    with TemporaryDirectory() as folder:
        for _ in range(2):
            state = RoundStore(Path(folder), CohortParameters)
            try:
                again = run_virtually(answered(state))
            except MalformedMessage:
                return "the server cannot read what it has kept, and the run never goes on"
            finally:
                state.close()
    foiled_unless(not again, "is_garbled", "garbage is garbage again, and its sender is named")
    return "the garbage is forgotten"


async def piece_by_piece(session: Session) -> float:
    """Send a model to a client that answers just in time; return the seconds that it took to give it up."""
    loop = asyncio.get_running_loop()

    def late(exchange: NetworkExchange, u: ClientId, asked: Request) -> None:
        answer = Reply(asked.id, wire.encode(PieceReceived(0)))
        loop.call_later(LATE, lambda: exchange.take_reply(u, answer))

    exchange, _ = exchange_with(late)
    for piece in range(PIECES):
        replies = await exchange({session.victim: SendModel(piece, b"piece")})
        while any(batch.open for batch in exchange._batches):
            await asyncio.sleep(1.0)
        if not list(replies):
            break
    return loop.time()


def answer_in_time(session: Session) -> str:
    """Answer every piece of the model just before the deadline, while everybody waits."""
    session.trail.stage = "SendModel"
    seconds = run_virtually(piece_by_piece(session))
    foiled_unless(seconds > 2 * STAGE, "remaining_time", f"the client is out after {seconds:g} seconds")
    return f"everybody waited for {seconds:g} seconds, where the deadline is {STAGE:g}"


on_complete = partial(Attack, graphs=(COMPLETE,))

ATTACKS = (
    on_complete(
        "a second announcement of another size",
        "A client announces its upload twice with different sizes, so that its vector has a wrong length.",
        tell_two_sizes,
        refused_by="check_same_size",
        stage="Contribute",
        checks=(names.SAME_SIZE,),
    ),
    on_complete(
        "garbage before a restart of the server",
        "A client answers with garbage before the server restarts, so that the stored answers cannot be read.",
        resume_after_garbage,
        refused_by="is_garbled",
        stage="Begin",
        checks=(names.IS_GARBLED,),
    ),
    on_complete(
        "an answer just in time for every piece of the model",
        "A client answers every piece of the model just before the deadline, while all others wait.",
        answer_in_time,
        refused_by="remaining_time",
        stage="SendModel",
        checks=(names.REMAINING_TIME,),
    ),
)
