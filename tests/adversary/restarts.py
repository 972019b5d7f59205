"""A client restarts from its directory: it must neither answer a request twice nor return to a round that it left."""

from pathlib import Path
from tempfile import TemporaryDirectory

from dordis.owner.journal import FileJournals
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.rounds.client import Client
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import ONE_ANSWER
from tests.adversary.participants import COMPLETE, NEW_RUN, honest_client
from tests.adversary.session import KEYS, Session, foiled_unless


def start(session: Session, path: str) -> Client:
    """Start the victim's process, with its journals in a directory."""
    u, journals = session.victim, FileJournals(Path(path))
    session.parties[u] = session.honest[u] = client = honest_client(u, session.apps[u], journals)
    return client


@attack(
    "another request after a restart from the disk",
    refused_by="check_same_request (UnexpectedRequest)",
    stage="ShareKeys",
    overlapping=(names.DISK_CLAIM, names.TURN),
    graphs=(COMPLETE,),
)
def share_twice(session: Session) -> str:
    """Restart the victim after it shared its secrets, and have it share them among other holders."""
    with TemporaryDirectory() as path:
        stopped = start(session, path)
        session.reach(KEYS)
        first = session.ask(session.victim, session.broadcast())
        stopped.stop()
        start(session, path).restore(session.parameters.round)
        second = session.ask(session.victim, session.broadcast(session.parameters.clients[:-1]))
    foiled_unless(first != second, ONE_ANSWER, "the second answer is the first")
    return "two sharings of one secret"


@attack(
    "a round that the client has left, after a restart",
    refused_by="check_in_round (Aborted)",
    stage="Invite",
    checks=(names.IN_ROUND,),
    graphs=(COMPLETE,),
)
def enter_again(session: Session) -> str:
    """Have the victim leave a round, restart it, and invite it to the same round."""
    with TemporaryDirectory() as path:
        start(session, path)
        session.reach(KEYS)
        session.honest[session.victim].close()
        start(session, path)
        session.advertise([session.victim])
    return "the victim advertised other keys for a round that it had left"


@attack(
    "a round that the client has left, after another one",
    refused_by="check_ahead (Aborted)",
    stage="Invite",
    checks=(names.AHEAD,),
    graphs=(COMPLETE,),
)
def enter_after_another(session: Session) -> str:
    """Have the victim leave a round and enter another, restart it, and invite it to the first."""
    with TemporaryDirectory() as path:
        start(session, path)
        session.reach(KEYS)
        session.honest[session.victim].close()
        FileJournals(Path(path))(NEW_RUN + bytes(8)).close()
        start(session, path)
        session.advertise([session.victim])
    return "the victim advertised other keys for a round that it had left"


@attack(
    "two processes of one client",
    refused_by="check_alone (InputError)",
    stage="Invite",
    checks=(names.ALONE,),
    graphs=(COMPLETE,),
)
def run_twice(session: Session) -> str:
    """Start the victim twice in one directory, and have both make keys for the round."""
    opening = AdvertiseKeys(session.parameters, {})
    with TemporaryDirectory() as path:
        both = [start(session, path), start(session, path)]
        for client in both:
            session.parties[session.victim] = client
            session.invite(session.victim, session.parameters)
        first, second = (session.deliver(client, opening) for client in both)
        for client in both:
            client.stop()
    foiled_unless(first != second, ONE_ANSWER, "both have the same keys")
    return "two sets of keys of one client"


ATTACKS: tuple[Attack, ...] = (share_twice, enter_again, enter_after_another, run_twice)
