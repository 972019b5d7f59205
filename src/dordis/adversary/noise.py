"""Noise that must stay, and seeds that are not the right ones."""

from msgspec.structs import replace

from dordis.adversary import names
from dordis.adversary.attack import attack
from dordis.adversary.forms import spoil_sum
from dordis.adversary.reconstruct import claim_noise, rebuild
from dordis.adversary.session import UPLOADS, Session
from dordis.protocols.secagg.messages import Unmask


@attack("stage 5 for a seed that is not due", checks=(names.DUE,), after=UPLOADS)
def rebuild_seed_not_due(session: Session) -> str:
    """Ask for the seed of the fifth by lot, which is silent at stage 4 and, as one is lost, keeps its noise."""
    order = session.removal_order()
    u3, silent = order[:-1], order[4]
    replies = session.finish(u3, without=[silent])
    return claim_noise(session, u3, replies, silent, rebuild(session, session.seed_shares(silent, replies)))


@attack("a seed that does not match its commitment", checks=(names.COMMITTED_SEED,))
def disclose_another_seed(session: Session) -> str:
    """Disclose a seed of zeros for noise that is due: the server would subtract what was never added."""
    liar = session.removal_order()[0]
    session.corrupt(liar, Unmask, lambda reply: replace(reply, seeds=dict.fromkeys(reply.seeds, bytes(32))))
    return spoil_sum(session, by="ChunkServer._is_committed")


ATTACKS = (rebuild_seed_not_due, disclose_another_seed)
