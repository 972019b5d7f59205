"""Messages that want memory, sent to a client that has one GiB of it: `test_memory` runs this as a process."""

import json
import random
import resource
import sys
from copy import deepcopy
from typing import Any

import msgspec
import numpy as np

from dordis import wire
from dordis.errors import DordisError
from dordis.kernels.ring import pack
from dordis.privacy import scaling
from dordis.privacy.encoding import Grid, quantise
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.protocol import MemoryJournal, Message
from dordis.protocols.delivery import Dispatch
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.parameters import Projection
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.rounds.invitation import Invite, SendModel, Train
from tests.adversary.missed import HELD, NAMED, Following, past_sum
from tests.adversary.participants import (
    BITS,
    CLIP,
    COMPLETE,
    DIM,
    EARLIER,
    IDS,
    agreed,
    careful_owner,
    forged,
    honest_client,
    invitation,
    lenient,
    random_update,
    words,
)
from tests.adversary.session import SET_UP, Session, Trail
from tests.rounds.test_fuzz import mutated

LIMIT = 1 << 30
DEAR = 1e18
"""A cost that this owner, who keeps no budget, lets a server promise: then parameters may have any sensitivity."""
BUCKETS = 32
SIZES = (*(1 << k for k in range(41)), DIM, 3, 100, 2**31 - 1, 2**63 - 1)


def copied(client: Any) -> Any:
    """Copy a client with its journal; the next round has a fresh one."""
    shared = (client.suite, client.protocol, client.owner, client.registry)
    copy = deepcopy(client, {id(one): one for one in shared})
    copy.journals = lambda round: MemoryJournal()
    return copy


def clients() -> dict[str, Any]:
    """Return a client between two rounds, one that missed a round, one that has trained, one that has uploaded."""
    session = Session(agreed(COMPLETE), Trail())
    victim, made = session.victim, {}
    owner = careful_owner(victim, lenient(colluders=0, coordinates=DIM, model_bytes=len(NAMED.data)))

    def installed() -> Any:
        app, journal = Following(random_update(session.parameters)), MemoryJournal()
        session.apps[victim] = app
        session.parties[victim] = session.honest[victim] = honest_client(victim, app, lambda round: journal, owner)
        return session.honest[victim]

    behind = installed()
    behind.journals = lambda round: MemoryJournal()
    session.invite(victim, forged(session.parameters, round=EARLIER, model=HELD.digest), HELD)
    made["idle"] = copied(behind)
    behind.handle(invitation(session.parameters, NAMED))
    made["behind"] = behind
    trained = installed()
    invite = invitation(session.parameters)
    trained.handle(msgspec.structs.replace(invite, terms=msgspec.structs.replace(invite.terms, cost=DEAR)))
    trained.handle(Train())
    made["trained"] = trained
    installed()
    session.reach(SET_UP)
    session.upload()
    made["uploaded"] = session.honest[victim]
    return made


def extreme(rng: random.Random, usual: int) -> int:
    """Return what is usual, or an extreme size."""
    return rng.choice((usual, rng.choice(SIZES)))


def shaped(session: Session, rng: random.Random) -> dict[str, Any]:
    """Return parameters of an extreme length, block and projection, that agree with each other."""
    if rng.random() < 0.1:
        return {}
    dim = rng.choice((DIM, rng.choice(SIZES)))
    buckets = rng.choice((0, rng.choice(SIZES)))
    kept = buckets or dim
    block = rng.choice((1, scaling.block_size(min(kept, 1 << 40)), rng.choice(SIZES)))
    padded = -(-kept // block) * block
    length = min(padded, 2**63 - 1)
    ends = sorted({max(1, length // 2), length}) if rng.random() < 0.2 else [length]
    sensitivity = scaling.sensitivity(1.0, CLIP, min(length, 1 << 40), folded=bool(buckets)).squared
    agreed_on = session.parameters.encoding
    sensitivity = rng.choice((agreed_on.sensitivity, min(sensitivity, 2**63 - 1)))
    encoding = msgspec.structs.replace(agreed_on, block=block, sensitivity=sensitivity)
    if buckets:
        encoding = msgspec.structs.replace(encoding, projection=Projection(dim, buckets))
    bits = rng.choice((BITS, BITS, 1, 32))
    variances = dict.fromkeys(range(len(ends)), "64")
    return {"encoding": encoding, "ends": words(*ends), "bits": bits, "variances": variances}


def message(rng: random.Random, session: Session) -> tuple[str, Message]:
    """Return which client gets a message, and a message whose lengths are chosen."""
    match rng.randrange(5):
        case 0:
            sizes = {"dim": rng.choice(SIZES), "model_bytes": rng.choice(SIZES)}
            kept = {name: size for name, size in sizes.items() if rng.random() < 0.7}
            return "idle", msgspec.structs.replace(invitation(session.parameters, NAMED), **kept)
        case 1:
            return "trained", AdvertiseKeys(msgspec.structs.replace(session.parameters, **shaped(session, rng)))
        case 2:
            request = past_sum(session, **shaped(session, rng))
            spans = {k: len(IDS) for k in range(len(request.parameters.chunks))}
            vector = rng.choice((bytes(request.vector), bytes(rng.choice((0, 1, 16, 100, 1000)))))
            return "behind", msgspec.structs.replace(request, survivors=spans, vector=vector)
        case 3:
            size = rng.choice((DIM, rng.choice((1, 2, 100, 1 << 16, 1 << 20))))
            vector = pack(np.zeros(size, np.uint32), BITS).tobytes()
            return "uploaded", Dispatch(extreme(rng, 0), extreme(rng, len(IDS)), vector)
    return "behind", SendModel(extreme(rng, 0), bytes(rng.choice((0, 1, 100, 1 << 20))))


def fuzz(count: int) -> dict[str, int]:
    """Send so many messages; count who answered, refused, and failed."""
    rng, made, session = random.Random(count), clients(), Session(agreed(COMPLETE), Trail())
    came = {"answered": 0, "refused": 0, "failed": 0}
    while sum(came.values()) < count:
        whom, request = message(rng, session)
        client = copied(made[whom])
        came[outcome(client, request, rng)] += 1
        if client.round is not None and isinstance(request, Invite):  # and so it goes on with this length
            came[outcome(client, next_sum(session, request.dim), rng)] += 1
    return came


def outcome(client: Any, request: Message, rng: random.Random) -> str:
    """Send one message, which may be altered on the way; tell what came of it."""
    kind, data, bulk = type(request), wire.encode(request), bytes(wire.bulk_of(request))
    if rng.random() < 0.3:
        data, bulk = mutated(request, rng)
    try:
        client.check_expected(kind, len(bulk))
        client.handle(wire.decode(data, kind, bulk=bulk))
    except DordisError:
        return "refused"
    except Exception as error:  # noqa: BLE001  a MemoryError, above all
        sys.stderr.write(f"{kind.__name__}: {error!r}\n")
        return "failed"
    return "answered"


def next_sum(session: Session, dim: int) -> Message:
    """Return a missed sum of a few bytes that leads to a model by updates of this length."""
    if dim <= BUCKETS:
        return past_sum(session)
    grid = Grid(dim, BUCKETS, 1.0, BITS, BUCKETS)
    folded = DSkellam(grid, CLIP, scaling.sensitivity(1.0, CLIP, BUCKETS, folded=True).squared)
    request = past_sum(session, encoding=encoding_of(folded, bytes(32)), ends=words(BUCKETS))
    return msgspec.structs.replace(request, vector=quantise(np.zeros(BUCKETS, np.uint32), grid))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    told = fuzz(int(sys.argv[1]))
    sys.stdout.write(json.dumps(told | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}))
