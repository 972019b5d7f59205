"""The forms that many attacks take, each with what it gains: a false round, false keys or shares, a second request."""

from collections.abc import Mapping

import numpy as np

from dordis.owner.policy import Owner
from dordis.privacy.mechanisms import Mechanism
from dordis.protocol import ClientId, Message
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.secagg import SecAggServer
from dordis.protocols.secagg.messages import Advertisement, DeliverShares, Unmask
from dordis.rounds.engine import RoundServer
from dordis.selection.selection import NO_PROOFS, Proofs
from dordis.simulation.exchange import Lost, nothing_lost
from tests.adversary.participants import Clients, signing_keys
from tests.adversary.reconstruct import claim_unmasked, true_sum
from tests.adversary.session import Foiled, Session, foiled_unless

ONE_ANSWER = "the journal"


def enter(session: Session, owner: Owner | None = None, proofs: Proofs = NO_PROOFS) -> str:
    """Begin a round that the victim, or the client of this owner, must refuse before it sends anything."""
    if owner is not None:
        session.give_owner(owner)
    session.advertise([session.victim if owner is None else owner.me], proofs=proofs)
    return "the victim entered a round that it must refuse"


def show_keys(session: Session, keys: Mapping[ClientId, Advertisement]) -> str:
    """Show the victim a U1 in which some have other keys than they sent, and ask for its shares."""
    session.keys.update(keys)
    session.share([session.victim])
    return "the victim shared its secrets under keys that are not their owners'"


def show_shares(session: Session, delivery: DeliverShares) -> str:
    """Deliver something else to the victim than it is due, the right shares to everyone else; collect all uploads."""
    session.open(session.others)
    session.ask(session.victim, delivery)
    session.upload()
    return "the victim uploaded after a delivery that it must refuse"


def isolate(session: Session, delivery: DeliverShares) -> str:
    """Deliver something to the victim after which it masks with nobody, and recover its update."""
    show_shares(session, delivery)
    return claim_unmasked(session)


def send(session: Session, request: Message) -> str:
    """Send the victim a request that it must not answer."""
    session.ask(session.victim, request)
    return f"the victim answered {type(request).__name__} where it must not"


def unmask(session: Session, u3: Clients, signatures: Mapping[int, bytes], chunk: int = 0) -> str:
    """Send the victim a request of stage 4 that it must not answer."""
    return send(session, Unmask(chunk, session.parameters.pack(u3), dict(sorted(signatures.items()))))


def ask_twice(session: Session, first: Message, second: Message, restart: bool = False) -> str:
    """Ask the victim two things at one stage, the second time as it was before the first if it is restarted."""
    older = session.restored(session.victim, session.journals[session.victim])
    reply = session.ask(session.victim, first)
    if restart:
        session.parties[session.victim] = older
    foiled_unless(reply != session.ask(session.victim, second), ONE_ANSWER, "the second answer is the first")
    return "two answers at one stage"


def spoil_sum(session: Session, lost: Lost = nothing_lost, by: str = "correction of wrong shares") -> str:
    """Run the round with an honest server and dishonest clients: does it take a wrong sum for the right one?"""
    output = session.play(lost)
    removed = session.due(output.survivors) - output.stayed.keys()
    if (output.total == true_sum(session, output.survivors, removed)).all():
        raise Foiled(by, f"the sum is right, and {len(output.named)} clients are named")
    return "the server took a wrong sum for the right one"


def use_sum(session: Session, mechanism: Mechanism) -> str:
    """Run the round with the engine's own server and dishonest clients: does it use a sum that is too long?"""
    private = DistributedDP(session.parameters, mechanism)
    server = RoundServer(SecAggServer(session.parameters, signing_keys()), private, receivers=())
    session.run(server)
    aggregate = server.aggregate()
    longest = 2 * mechanism.clip * len(session.parameters.clients)
    length = float(np.linalg.norm(aggregate.total))
    foiled_unless(length > longest, "the masks", "the sum is as long as the updates")
    return f"the server uses a sum that is {length / longest:.3g} times as long as all updates and their noise"
