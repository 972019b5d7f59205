"""The server delivers a false sum: nothing proves that a sum is right; clients check its length, and how many survive.

A client accepts one sum for each chunk."""

import numpy as np
from msgspec.structs import replace

from dordis.kernels.ring import pack
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import NoMechanism
from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.encoded_sums import encoding_of
from tests.adversary import names
from tests.adversary.attack import attack
from tests.adversary.participants import COMPLETE, IDS, honest_receiver
from tests.adversary.session import Session, foiled_unless

DIM, BITS = 8, 16
NO_NOISE = {"encoding": encoding_of(NoMechanism(Grid(DIM, DIM, 1.0, BITS)), bytes(32)), "variances": None}


def flat_sum(value: int, survivors: int = len(IDS)) -> Dispatch:
    """Return a sum that has the same value everywhere."""
    return Dispatch(0, survivors, pack(np.full(DIM, value, np.uint32), BITS).tobytes())


def stored_norm(session: Session, *sums: Dispatch) -> float:
    """Deliver sums to a client and return the norm of what it takes for the mean."""
    client = honest_receiver(session.parameters)
    for request in (*sums, Store(0)):
        session.deliver(client, request)
    return 0.0 if client.aggregate is None else float(np.linalg.norm(client.aggregate.mean))


@attack(
    "a sum over too few clients",
    refused_by="check_counted (ProtocolError)",
    stage="Dispatch",
    graphs=(COMPLETE,),
    agreed=NO_NOISE,
    checks=(names.COUNTED,),
)
def understate_survivors(session: Session) -> str:
    """Deliver the sum over eight clients as the sum of one: the victim's mean would be eight times too large."""
    right = stored_norm(session, flat_sum(800))
    foiled_unless(stored_norm(session, flat_sum(800, survivors=1)) > right, "the count", "the mean is right")
    return "the victim's mean is too large"


@attack(
    "a second sum of the same chunk",
    refused_by="check_same_request (UnexpectedRequest)",
    stage="Dispatch",
    graphs=(COMPLETE,),
    agreed=NO_NOISE,
    overlapping=(names.CLAIM, names.TURN),
)
def dispatch_twice(session: Session) -> str:
    """Deliver a second sum of a chunk whose first sum the victim has acknowledged."""
    first, second = stored_norm(session, flat_sum(800)), stored_norm(session, flat_sum(800), flat_sum(8000))
    foiled_unless(second != first, "the journal", "the victim uses the first sum")
    return "the victim uses the second sum"


@attack(
    "a sum that is longer than its chunk",
    refused_by="check_delivered (ProtocolError)",
    stage="Dispatch",
    graphs=(COMPLETE,),
    agreed=NO_NOISE,
    checks=(names.DELIVERED_LENGTH,),
)
def dispatch_more(session: Session) -> str:
    """Have the victim store more bytes in its journal than any sum of the round has."""
    request = flat_sum(800)
    longer = replace(request, vector=bytes(request.vector) + bytes(1 << 20))
    session.deliver(honest_receiver(session.parameters), longer)
    return "the victim keeps bytes that are no sum"


ATTACKS = (understate_survivors, dispatch_twice, dispatch_more)
