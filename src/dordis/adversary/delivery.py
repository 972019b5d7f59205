"""The sums that a server hands back to the clients: it can invent them, but neither twice nor over too few."""

import numpy as np

from dordis.adversary import names
from dordis.adversary.attack import Attack, gained
from dordis.adversary.cast import IDS
from dordis.adversary.session import Trail, deliver
from dordis.kernels.packing import pack
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.none import NoMechanism
from dordis.protocols.delivery import DeliveryClient, Dispatch, Received, Store, Stored
from dordis.protocols.distributed_dp import DistributedDP, encoding_of
from dordis.protocols.parameters import agree_on

DIM, BITS = 8, 16
ONE = NoMechanism(Grid(DIM, DIM, 1.0, BITS))


def receiver() -> DeliveryClient:
    """Return a client that waits for the sum of a round."""
    parameters = agree_on(
        run=bytes(32), index=7, clients=IDS, threshold=5, tolerance=3, bits=BITS, ends=[DIM],
        encoding=encoding_of(ONE, bytes(32)),
    )  # fmt: skip
    return DeliveryClient(DistributedDP.of(parameters, DIM))


def dispatch(value: int, survivors: int = len(IDS)) -> Dispatch:
    """Return a sum that has the same value everywhere."""
    return Dispatch(0, survivors, pack(np.full(DIM, value, np.uint32), BITS).tobytes())


def norm(client: DeliveryClient, trail: Trail) -> float:
    """Have the sum stored and return the norm of what the client takes for the mean."""
    deliver(client, Store(0), Stored, trail)
    return 0.0 if client.aggregate is None else float(np.linalg.norm(client.aggregate.mean))


class FewCounted(Attack):
    """A sum of all is passed off as the sum of one."""

    name = "a sum over fewer clients than there can be"
    text = "The victim is given the sum over eight clients as that over one: the mean would be eight times too large."
    checks = (names.COUNTED,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Understate the survivors."""
        honest, victim = receiver(), receiver()
        for client, survivors in ((honest, len(IDS)), (victim, 1)):
            deliver(client, dispatch(800, survivors), Received, trail)
        larger = norm(victim, trail) > norm(honest, trail)
        return gained(larger, "the victim's mean is too large", "the count", "the mean is right")


class SecondSum(Attack):
    """The sum of a chunk is replaced by another one before it is stored."""

    name = "a second sum of the same chunk"
    text = "The victim, having acknowledged the sum of a chunk, is given another one, which it is to use instead."
    overlapping = (names.CLAIM, names.TURN)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Send two."""
        honest, victim = receiver(), receiver()
        deliver(honest, dispatch(800), Received, trail)
        for value in (800, 8000):
            deliver(victim, dispatch(value), Received, trail)
        other = norm(victim, trail) != norm(honest, trail)
        return gained(other, "the victim uses the second sum", "the journal", "the victim uses the first sum")


ATTACKS: tuple[Attack, ...] = (FewCounted(), SecondSum())
