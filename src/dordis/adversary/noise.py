"""Noise that must stay, and seeds that are not the right ones."""

from msgspec.structs import replace

from dordis.adversary import names
from dordis.adversary.attack import Attack
from dordis.adversary.forms import spoil_sum
from dordis.adversary.reconstruct import claim_noise, rebuild
from dordis.adversary.session import UPLOADS, Session
from dordis.protocols.secagg.messages import Unmask


def rebuild_seed_not_due(session: Session) -> str:
    """Lose one client, so that the first four by lot are due, and ask for the seed of the fifth, which is silent."""
    order = session.removal_order()
    u3, silent = order[:-1], order[4]
    replies = session.finish(u3, without=[silent])
    return claim_noise(session, u3, replies, silent, rebuild(session, session.seed_shares(silent, replies)))


def disclose_another_seed(session: Session) -> str:
    """Let the first by lot, whose noise is due, disclose a seed of zeros."""
    liar = session.removal_order()[0]
    session.corrupt(liar, Unmask, lambda reply: replace(reply, seeds=dict.fromkeys(reply.seeds, bytes(32))))
    return spoil_sum(session, by="ChunkServer._is_committed")


ATTACKS = (
    Attack(
        "stage 5 for a seed that is not due",
        "The victim is silent at stage 4 and keeps its noise; the server asks its peers to rebuild the seed anyway.",
        rebuild_seed_not_due,
        checks=(names.DUE,),
        after=UPLOADS,
    ),
    Attack(
        "a seed that does not match its commitment",
        "A client whose noise is due discloses another seed: the server would subtract noise that was never added.",
        disclose_another_seed,
        checks=(names.COMMITTED_SEED,),
    ),
)
