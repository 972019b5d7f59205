"""The server repeats a request, asks differently after a restart, or replays messages of an earlier round or chunk."""

from functools import partial

from msgspec.structs import replace

from dordis.errors import UnexpectedRequest
from dordis.protocol import MemoryJournal
from dordis.protocols.parameters import SEMI_HONEST
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import ONE_ANSWER, ask_twice, show_keys, show_shares, unmask
from tests.adversary.participants import COMPLETE, EARLIER, forged, honest_client, invitation
from tests.adversary.reconstruct import disclosed
from tests.adversary.session import KEYS, SET_UP, SHARES, UPLOADS, Session, foiled_unless


@attack(
    "another request after a restart from older state",
    refused_by="check_same_request (UnexpectedRequest)",
    stage="Unmask",
    checks=(names.CLAIM,),
    after=UPLOADS,
    agreed={"mode": SEMI_HONEST},
)
def unmask_after_restart(session: Session) -> str:
    """Restore the victim from before it unmasked, and ask for another U3: both parts of one client's mask."""
    victim = session.victim
    older = session.restored(victim, session.journals[victim])
    peer = session.peers(victim)[0]
    u3 = [u for u in session.u2 if u != peer]
    _, masks = disclosed(session, session.u2, session.unmask(session.u2, {}, [victim]))
    session.parties[victim] = older
    keys, _ = disclosed(session, u3, session.unmask(u3, {}, [victim]))
    foiled_unless(victim in masks[peer] and victim in keys[peer], ONE_ANSWER, "only one half was disclosed")
    return "both shares of one client's mask"


@attack(
    "a client restored after it left the round",
    refused_by="MemoryJournal.claim (Aborted)",
    stage="CollectInput",
    checks=(names.CLAIM,),
    after=SET_UP,
)
def restore_after_leaving(session: Session) -> str:
    """Let the victim detect a lie, leave the round and erase its secrets, then restore a copy of its older state."""
    victim = session.victim
    older = session.restored(victim, session.journals[victim])
    try:
        session.seed_shares(victim, [victim])
    except UnexpectedRequest:
        session.parties[victim] = older
    session.upload([victim])
    return "the victim uploaded after it had left the round"


@attack(
    "state restored without its journal",
    refused_by="SecAggClient.__init__ (InputError)",
    stage="AdvertiseKeys",
    graphs=(COMPLETE,),
    after=KEYS,
)
def restore_without_journal(session: Session) -> str:
    """Restore the victim's state without the journal, so that it could answer twice."""
    session.restored(session.victim, journal=None)
    return "the client runs without a journal"


@attack(
    "an invitation to a round that was left",
    refused_by="check_not_left (UnexpectedRequest)",
    stage="Invite",
    checks=(names.INVITATION + "check_not_left",),
    graphs=(COMPLETE,),
)
def rejoin(session: Session) -> str:
    """Invite the victim, whose journal is in memory, to another round and back: it would advertise other keys."""
    victim = session.victim
    client = honest_client(victim, session.apps[victim], lambda round: MemoryJournal())
    session.parties[victim] = session.honest[victim] = client
    session.advertise([victim])
    shown = session.keys[victim]
    session.ask(victim, invitation(forged(session.parameters, round=EARLIER)))
    session.advertise([victim])
    foiled_unless(session.keys[victim] != shown, ONE_ANSWER, "the keys are the same")
    return "two sets of keys of one client in one round"


@attack(
    "shares of an earlier round",
    refused_by="check_nobody_accused (ProtocolError)",
    stage="CollectInput",
    checks=(names.NOBODY_ACCUSED,),
    after=SHARES,
)
def show_old_shares(session: Session) -> str:
    """Deliver ciphertexts of the previous round, whose secrets the server may know by now."""
    earlier = session.another(SHARES, round=EARLIER)
    sent = {int(u): reply.ciphertexts for u, reply in earlier.shares.items()}
    due = session.delivery(session.victim)
    old = {u: sent[u].get(session.victim) or max(sent[u].values()) for u in due.ciphertexts}
    return show_shares(session, replace(due, ciphertexts=old))


@attack(
    "keys of an earlier round",
    refused_by="check_keys_signed (InvalidSignature)",
    stage="ShareKeys",
    checks=(names.KEYS_SIGNED, names.VERIFY),
    after=KEYS,
)
def show_old_keys(session: Session) -> str:
    """Show the victim a peer's signed keys of the previous round, whose private keys the server may have."""
    earlier = session.another(KEYS, round=EARLIER)
    return show_keys(session, {session.last: earlier.keys[session.last]})


@attack(
    "a request of an earlier chunk",
    refused_by="check_turn (UnexpectedRequest)",
    stage="Unmask",
    checks=(names.TURN,),
    after=UPLOADS,
    agreed={"mode": SEMI_HONEST, "ends": [4, 8]},
)
def unmask_another_chunk(session: Session) -> str:
    """Unmask the first chunk, then the second, which the victim has not uploaded."""
    session.unmask(session.u2, {}, [session.victim])
    return unmask(session, session.u2, {}, chunk=1)


second_request = partial(Attack, overlapping=(names.CLAIM, names.TURN))

ATTACKS = (
    second_request(
        "the same request again",
        "The victim is asked to share its secrets twice: two sharings of one secret, among different holders.",
        lambda session: ask_twice(session, session.broadcast(), session.broadcast()),
        refused_by="the journal",
        stage="ShareKeys",
        after=KEYS,
    ),
    Attack(
        "the same request after a restart from older state",
        "The victim, restored from before it shared its secrets, is asked to share them again: two sharings.",
        lambda session: ask_twice(session, session.broadcast(), session.broadcast(), restart=True),
        refused_by="the journal",
        stage="ShareKeys",
        checks=(names.CLAIM,),
        after=KEYS,
    ),
    unmask_after_restart,
    restore_after_leaving,
    restore_without_journal,
    rejoin,
    second_request(
        "a server that restarts and shares keys again",
        "After a restart the server has another U1 and asks for shares again: two sharings of every secret.",
        lambda session: ask_twice(session, session.broadcast(), session.broadcast(session.parameters.clients[:-1])),
        refused_by="check_same_request (UnexpectedRequest)",
        stage="ShareKeys",
        after=KEYS,
    ),
    second_request(
        "a server that restarts and agrees again",
        "After a restart the server asks to sign another U3: the victim's signature would be on two sets.",
        lambda session: ask_twice(session, session.agreement(session.u2), session.agreement(session.u2[:-1])),
        refused_by="check_same_request (UnexpectedRequest)",
        stage="Agree",
        after=UPLOADS,
    ),
    show_old_shares,
    show_old_keys,
    unmask_another_chunk,
)
