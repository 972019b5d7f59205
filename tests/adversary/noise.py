"""The server asks for seeds of noise that must stay in the sum; clients disclose or use wrong seeds."""

import numpy as np
from msgspec.structs import replace

from dordis.crypto.suite import DEFAULT
from dordis.kernels.ring import pack, unpack
from dordis.privacy import scaling
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.secagg import masking
from dordis.protocols.secagg.messages import CollectInput, MaskedInput, Unmask
from tests.adversary import names
from tests.adversary.attack import attack
from tests.adversary.forms import spoil_sum, use_sum
from tests.adversary.participants import BITS, DIM
from tests.adversary.reconstruct import claim_noise, rebuild
from tests.adversary.session import UPLOADS, Session

SHORT = DSkellam(Grid(DIM, DIM, 1.0, BITS), 100.0, scaling.sensitivity(1.0, 100.0, DIM).squared)
"""Clips updates well below what the ring holds, as rounds do that are not of toys."""


@attack(
    "stage 5 for a seed that is not due",
    refused_by="check_subset (ProtocolError)",
    stage="RemoveNoise",
    checks=(names.DUE,),
    after=UPLOADS,
)
def rebuild_seed_not_due(session: Session) -> str:
    """Ask at stage 5 for the seed of a client that was silent at stage 4 and whose noise must stay."""
    order = session.removal_order()
    u3, silent = order[:-1], order[4]
    replies = session.finish(u3, without=[silent])
    return claim_noise(session, u3, replies, silent, rebuild(session, session.seed_shares(silent, replies)))


@attack(
    "a seed that does not match its commitment",
    refused_by="ChunkServer._is_committed",
    stage="RemoveNoise",
    checks=(names.COMMITTED_SEED,),
)
def disclose_another_seed(session: Session) -> str:
    """Disclose a seed of zeros for noise that is due: the server would subtract what was never added."""
    liar = session.removal_order()[0]
    session.corrupt(liar, Unmask, lambda reply: replace(reply, seeds=dict.fromkeys(reply.seeds, bytes(32))))
    return spoil_sum(session, by="ChunkServer._is_committed")


@attack(
    "a mask of another seed than was shared",
    refused_by="check_possible (ImpossibleSum)",
    stage="Unmask",
    checks=(names.POSSIBLE,),
    agreed={"encoding": encoding_of(SHORT, bytes(32))},
)
def mask_with_another_seed(session: Session) -> str:
    """Mask the upload with another seed than the one shared: after unmasking, the sum is uniform numbers."""
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
