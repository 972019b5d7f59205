"""What the adversary computes from what it is told, and whether it is the truth, which only the examiner knows."""

from collections.abc import Collection, Mapping

import numpy as np

from dordis.crypto import agreement, prg, sharing
from dordis.crypto.suite import DEFAULT
from dordis.kernels.ring import Vector, unpack
from dordis.privacy.skellam_noise import add_noise
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import masking, unmasking
from dordis.protocols.secagg.masking import share_hashes
from dordis.protocols.secagg.messages import Advertisement
from tests.adversary.participants import Clients
from tests.adversary.session import Session, Unmaskings, foiled_unless

MASKS = "masks that the adversary does not know"
Shares = dict[ClientId, dict[ClientId, bytes]]
"""By dealer, then by holder."""


def channel(
    parameters: Parameters, keys: Mapping[ClientId, Advertisement], sender: ClientId, receiver: ClientId, private: bytes
) -> masking.Channel:
    """Return one direction of the channel between two clients, given the private key of one of them."""
    public = [keys[u].channel for u in (sender, receiver)]
    other = next(key for key in public if key != agreement.public_key(private))
    return masking.Channel(DEFAULT, parameters, sender, receiver, public, agreement.agree(private, other))


def deal(
    parameters: Parameters,
    keys: Mapping[ClientId, Advertisement],
    dealer: ClientId,
    holder: ClientId,
    private: bytes,
    shares: bytes,
) -> bytes:
    """Return what a dealer sends to a holder: shares, encrypted, and their hashes."""
    sealed = channel(parameters, keys, dealer, holder, private).encrypt(shares)
    return sealed + share_hashes(parameters, dealer, holder, shares)


def disclosed(session: Session, u3: Clients, replies: Unmaskings) -> tuple[Shares, Shares]:
    """Sort the shares that were disclosed: of masking keys and of self-masks."""
    keys: Shares = {}
    masks: Shares = {}
    for v, reply in replies.items():
        held = sorted(session.parameters.neighbourhoods[v] & {*session.u2})
        lost, alive = [u for u in held if u not in u3], [u for u in held if u in u3]
        for target, dealers, data in ((keys, lost, reply.key_shares), (masks, alive, reply.mask_shares)):
            for u, share in zip(dealers, masking.split(data, sharing.SHARE_BYTES, len(dealers)), strict=True):
                target.setdefault(u, {})[v] = share
    return keys, masks


def rebuild(session: Session, shares: Mapping[ClientId, bytes]) -> bytes:
    """Rebuild a secret from the shares of its holders."""
    points = [session.parameters.point(v) for v in shares]
    rows = np.stack([sharing.from_bytes(share) for share in shares.values()])
    return sharing.Interpolation(points, session.parameters.threshold).combine(rows)[0]


def uploaded(session: Session, u: ClientId, chunk: int = 0) -> Vector:
    """Return an upload as a vector."""
    span = session.parameters.chunks[chunk]
    return unpack(session.uploads[chunk][u].vector, session.parameters.bits, span.stop - span.start)


def unmasked(session: Session, self_mask: bytes, private: bytes = b"") -> Vector:
    """Take the masks off the victim's upload of the first chunk: its self-mask and, given its key, those with peers."""
    u, parameters, y = session.victim, session.parameters, uploaded(session, session.victim)
    added: list[prg.Stream] = []
    subtracted = [masking.self_mask(DEFAULT, parameters, 0, u, self_mask)]
    for v in session.peers(u) if private else ():
        mask = masking.pair_mask(DEFAULT, parameters, 0, (u, v), private, session.masking_key(v))
        (subtracted if u < v else added).append(mask)
    prg.add_masks(y, added, subtracted, parameters.bits)
    return y


def summed(session: Session, members: Clients, keys: Shares, masks: Shares, chunk: int = 0) -> Vector:
    """Add up the uploads of some clients and take off every mask that the shares allow; noise stays."""
    total: Vector = np.sum([uploaded(session, u, chunk) for u in members], axis=0, dtype=np.uint32)
    private = {u: rebuild(session, shares) for u, shares in keys.items()}
    self_masks = {u: rebuild(session, masks[u]) for u in members}
    public = {u: session.masking_key(u, chunk) for u in members}
    unmasking.remove_masks(DEFAULT, total, session.parameters, chunk, private, self_masks, public)
    return total


def without_noise(session: Session, total: Vector, seeds: Collection[bytes]) -> Vector:
    """Take the noise of seeds of the first removable component off a vector of the first chunk."""
    for seed in seeds:
        add_noise(total, seed, session.parameters.plans[0].removable[0], subtract=True)
    return total & np.uint32(2**session.parameters.bits - 1)


def true_update(session: Session, u: ClientId, removed: bool = False, chunk: int = 0) -> Vector:
    """Return an input with all its noise, or without the removable part."""
    plan, own = session.parameters.plans[chunk], session.secrets[u][chunk]
    value = np.array(session.inputs[u][session.parameters.chunks[chunk]])
    noise = [*zip(own.issued.private, plan.base, strict=True)]
    if not removed:
        noise += zip(own.issued.deposited, plan.removable, strict=True)
    for seed, variance in noise:
        add_noise(value, seed, variance)
    return value & np.uint32(2**session.parameters.bits - 1)


def true_sum(session: Session, u3: Clients, removed: Clients = (), chunk: int = 0) -> Vector:
    """Return the sum over U3, some without their removable noise."""
    values = [true_update(session, u, u in removed, chunk) for u in u3]
    total: Vector = np.sum(values, axis=0, dtype=np.uint32)
    return total & np.uint32(2**session.parameters.bits - 1)


# What attacks end with


def claim_update(session: Session, update: Vector, removed: bool = False) -> str:
    """Claim to have the victim's update with its own noise only, or with its base noise only."""
    truth = true_update(session, session.victim, removed)
    foiled_unless(np.array_equal(update, truth), MASKS, "what came out is not the update")
    return f"recovered the victim's update with its {'base' if removed else 'own'} noise only"


def claim_both_halves(session: Session, key: Mapping[ClientId, bytes], mask: Mapping[ClientId, bytes]) -> str:
    """Rebuild both halves of the victim's mask from shares and take them off its upload."""
    return claim_update(session, unmasked(session, rebuild(session, mask), rebuild(session, key)))


def claim_unmasked(session: Session) -> str:
    """Unmask U2 and take the self-mask off the upload of a victim that masked with nobody else."""
    _, masks = disclosed(session, session.u2, session.finish(session.u2, without=[session.victim]))
    return claim_update(session, unmasked(session, rebuild(session, masks[session.victim])))


def claim_sum(session: Session, members: Clients, keys: Shares, masks: Shares, chunk: int = 0) -> None:
    """Claim to have the sum over some clients with just their noise."""
    total, truth = summed(session, members, keys, masks, chunk), true_sum(session, members, chunk=chunk)
    foiled_unless(np.array_equal(total, truth), MASKS, "what came out is not the sum")


def claim_little_noise(session: Session, members: Clients, keys: Shares, masks: Shares) -> str:
    """Claim to have the sum over some clients, too few for the noise that it must keep."""
    claim_sum(session, members, keys, masks)
    plan = session.parameters.plans[0]
    noise, needed = len(members) * plan.added_variance, plan.kappa * plan.variance
    foiled_unless(noise < needed, "the noise plan", "there is noise enough")
    return f"the sum came out with noise of variance {float(noise):.1f} instead of {float(needed):.1f}"


def claim_noise(session: Session, u3: Clients, replies: Unmaskings, owner: ClientId, seed: bytes) -> str:
    """Take the noise that is due off the sum over U3, and then, given a seed, noise of a client's that must stay."""
    due = session.due(u3)
    total = summed(session, sorted(u3), *disclosed(session, u3, replies))
    left = without_noise(session, total, [*(replies[u].seeds[0] for u in sorted(due)), seed])
    truth = true_sum(session, u3, {*due, owner})
    foiled_unless(np.array_equal(left, truth), "the arithmetic", "the noise was not removed")
    return "removed noise of the victim that must stay in the sum"
