"""The server names false survivors in U3, or shows forged, too few or foreign signatures on U3."""

from collections.abc import Callable, Mapping
from functools import partial

from dordis.protocol import ClientId
from dordis.protocols.parameters import SEMI_HONEST
from dordis.protocols.secagg.messages import Unmask, survivors_statement
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import send, unmask
from tests.adversary.participants import EARLIER, OUTSIDER, Clients
from tests.adversary.reconstruct import claim_little_noise, disclosed
from tests.adversary.session import KEYS, SET_UP, UPLOADS, Session, Unmaskings, foiled_unless


@attack(
    "Unmask for another U3 than the one signed",
    refused_by="check_same_survivors (ProtocolError)",
    stage="Unmask",
    checks=(names.SAME_SURVIVORS,),
    after=UPLOADS,
)
def unmask_another_set(session: Session) -> str:
    """Let the victim sign one U3, and ask it to unmask another one that a real quorum signed."""
    smaller = session.u2[:-1]
    session.agree(session.u2, [session.victim])
    return unmask(session, smaller, session.agree(smaller, smaller[1:]))


def count_in(session: Session, silent: ClientId, uploading: Clients) -> Unmaskings:
    """Name a client that does not upload in U3, with an invented token, and have it unmasked."""
    session.upload(uploading)
    u3 = [*uploading, silent]
    return session.unmask(u3, session.agree(u3, uploading, forged=[silent]), uploading)


@attack(
    "U3 with a client that never uploaded",
    refused_by="check_tokens (ProtocolError)",
    stage="Agree",
    checks=(names.TOKENS,),
    after=SET_UP,
)
def count_in_last_by_lot(session: Session) -> str:
    """Name a client that did not upload in U3, with an invented token: others would disclose noise that must stay."""
    *uploading, silent = session.removal_order()
    replies = count_in(session, silent, uploading)
    extra = {u for u, reply in replies.items() if reply.seeds} - session.due(uploading)
    foiled_unless(bool(extra), "the rule", "no seed was due")
    return f"{len(extra)} clients disclosed noise that must stay"


@attack(
    "understated |D|: a silent client is counted in",
    refused_by="check_tokens (ProtocolError)",
    stage="Agree",
    checks=(names.TOKENS,),
    after=SET_UP,
    agreed={"tolerance": 1},
)
def count_in_one_of_two(session: Session) -> str:
    """Lose more than T clients, and name one of them in U3, so that the others unmask nevertheless."""
    *uploading, silent, _ = session.u2
    count_in(session, silent, uploading)
    return "the survivors disclosed although more clients are lost than the noise tolerates"


@attack(
    "understated |D|: a client outside U2 is counted in",
    refused_by="check_subset (ProtocolError)",
    stage="Unmask",
    checks=(names.SUBSET,),
    after=KEYS,
    agreed={"tolerance": 1, "mode": SEMI_HONEST},
)
def count_in_absent(session: Session) -> str:
    """Name a client outside U2 in U3 to hide that more than T are lost: too little noise is left."""
    *uploading, silent, absent = session.parameters.clients
    session.share([*uploading, silent])
    session.open()
    session.upload(uploading)
    u3 = [*uploading, absent]
    return claim_little_noise(session, uploading, *disclosed(session, u3, session.unmask(u3, {}, uploading)))


@attack(
    "|D| > T",
    refused_by="check_tolerated (TooManyDropouts)",
    stage="Agree",
    checks=(names.TOLERATED,),
    after=SET_UP,
    agreed={"tolerance": 1},
)
def lose_too_many(session: Session) -> str:
    """Lose more clients than the noise tolerates, and ask the survivors to unmask nevertheless."""
    u3 = session.u2[:-2]
    session.upload(u3)
    return claim_little_noise(session, u3, *disclosed(session, u3, session.finish(u3)))


def show_signatures(session: Session, signatures: Callable[[Session], Mapping[int, bytes]]) -> str:
    """Let the victim sign U3 of the second chunk, and show it something else than a quorum's signatures."""
    session.upload(chunk=1)
    session.agree(session.u2, [session.victim], chunk=1)
    return unmask(session, session.u2, signatures(session), chunk=1)


def one_too_few(session: Session) -> dict[int, bytes]:
    """Collect one signature fewer than the quorum."""
    return session.agree(session.u2, session.u2[1 : session.parameters.quorum], chunk=1)


def by_outsider(session: Session) -> bytes:
    """Let the outsider sign U3."""
    return session.sign(OUTSIDER, survivors_statement(session.parameters, 1, session.parameters.pack(session.u2)))


def of_earlier_round(session: Session) -> dict[int, bytes]:
    """Collect signatures on the same U3 of the same chunk in the round before."""
    earlier = session.another(SET_UP, round=EARLIER)
    earlier.upload(chunk=1)
    return earlier.agree(earlier.u2, chunk=1)


def of_another_type(session: Session) -> dict[int, bytes]:
    """Take the signatures on keys and on shares."""
    return {int(u): (session.keys if u % 2 else session.shares)[u].signature for u in session.u2}


false_signatures = partial(Attack, checks=(names.VERIFY, names.QUORUM_SIGNED), after=UPLOADS, agreed={"ends": [4, 8]})

ATTACKS = (
    unmask_another_set,
    count_in_last_by_lot,
    count_in_one_of_two,
    count_in_absent,
    lose_too_many,
    false_signatures(
        "one signature fewer than the quorum",
        "With one signature fewer, two different U3 can both be signed, and the victim could unmask the wrong one.",
        partial(show_signatures, signatures=one_too_few),
        refused_by="check_enough (ProtocolError)",
        stage="Unmask",
        checks=(names.ENOUGH, names.QUORUM_SIGNED),
    ),
    false_signatures(
        "forged signatures on U3",
        "The server invents the signatures of a quorum, so that the victim unmasks a U3 of the server's choice.",
        partial(show_signatures, signatures=lambda s: dict.fromkeys(map(int, s.u2), by_outsider(s))),
        refused_by="check_quorum_signed (InvalidSignature)",
        stage="Unmask",
    ),
    false_signatures(
        "signatures of another chunk",
        "A quorum signed the same U3 for the first chunk; the server shows these signatures for the second.",
        partial(show_signatures, signatures=lambda s: s.agree(s.u2, s.others, chunk=0)),
        refused_by="check_quorum_signed (InvalidSignature)",
        stage="Unmask",
    ),
    false_signatures(
        "signatures of another round",
        "The same clients signed the same U3 in an earlier round; the server shows these signatures again.",
        partial(show_signatures, signatures=of_earlier_round),
        refused_by="check_quorum_signed (InvalidSignature)",
        stage="Unmask",
    ),
    false_signatures(
        "signatures of another type",
        "Clients signed their keys and shares; the server shows these signatures as signatures on U3.",
        partial(show_signatures, signatures=of_another_type),
        refused_by="check_quorum_signed (InvalidSignature)",
        stage="Unmask",
    ),
    false_signatures(
        "a signer outside U3",
        "A registered colluder outside U3 completes the quorum: outsiders could sign any number of U3.",
        partial(show_signatures, signatures=lambda s: {**one_too_few(s), int(OUTSIDER): by_outsider(s)}),
        refused_by="check_subset (ProtocolError)",
        stage="Unmask",
        checks=(names.SUBSET, names.QUORUM_SIGNED),
    ),
    Attack(
        "U3 with a client outside U",
        "The bitmap of U3 has a bit beyond the last client, to count a client that does not exist.",
        lambda session: send(session, Unmask(0, session.parameters.pack(session.u2) + b"\1")),
        refused_by="CohortParameters.unpack (MalformedMessage)",
        stage="Unmask",
        after=UPLOADS,
        agreed={"mode": SEMI_HONEST},
    ),
)
