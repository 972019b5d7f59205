"""Noise that must stay, and seeds that are not the right ones: of noise, and of masks."""

import numpy as np
from msgspec.structs import replace

from dordis.adversary import names
from dordis.adversary.attack import attack
from dordis.adversary.forms import spoil_sum, use_sum
from dordis.adversary.participants import BITS, DIM
from dordis.adversary.reconstruct import claim_noise, rebuild
from dordis.adversary.session import UPLOADS, Session
from dordis.crypto.suite import DEFAULT
from dordis.kernels.packing import pack, unpack
from dordis.privacy import skellam
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.protocols.distributed_dp import encoding_of
from dordis.protocols.secagg import masking
from dordis.protocols.secagg.messages import CollectInput, MaskedInput, Unmask

SHORT = DSkellam(Grid(DIM, DIM, 1.0, BITS), 100.0, skellam.sensitivity(1.0, 100.0, DIM).squared)
"""Clips updates well below what the ring holds, as rounds do that are not of toys."""


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


@attack(
    "a mask of another seed than was shared",
    checks=(names.POSSIBLE,),
    agreed={"encoding": encoding_of(SHORT, bytes(32))},
)
def mask_with_another_seed(session: Session) -> str:
    """Mask the upload with a seed other than the one shared: unmasking leaves uniform numbers, to be used as a sum."""
    liar, parameters = session.last, session.parameters

    def mask_anew(reply: MaskedInput) -> MaskedInput:
        right, wrong = (
            masking.self_mask(DEFAULT, parameters, 0, liar, seed)
            for seed in (session.state(liar).secrets[0].self_mask, bytes(32))
        )
        y = np.array(unpack(reply.vector, BITS, DIM))
        DEFAULT.prg.add_masks(y, [wrong], [right], BITS)
        return replace(reply, vector=pack(y, BITS).tobytes())

    session.corrupt(liar, CollectInput, mask_anew)
    return use_sum(session, SHORT)


ATTACKS = (rebuild_seed_not_due, disclose_another_seed, mask_with_another_seed)
