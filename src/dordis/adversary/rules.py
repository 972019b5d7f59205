"""Parameters that break a rule of the protocol, and what the rule is for."""

from functools import partial
from itertools import combinations

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.forms import enter
from dordis.adversary.participants import COMPLETE, IDS, OUTSIDER, SPARE, SPARSE, careful_owner, words
from dordis.adversary.reconstruct import claim_both_halves, claim_little_noise, claim_sum, disclosed
from dordis.adversary.session import SET_UP, UPLOADS, Foiled, Session, foiled_unless
from dordis.crypto import sharing
from dordis.protocol import ClientId, MemoryJournal
from dordis.protocols.limits import MOST_CLIENTS
from dordis.protocols.parameters import SEMI_HONEST, Parameters
from dordis.protocols.secagg.masking import split


@attack(
    "2t <= n + T_C: two quorums, split views",
    graphs=(COMPLETE,),
    checks=(names.MAJORITY, names.THRESHOLDS, names.RULES),
    after=UPLOADS,
    agreed={"clients": IDS[:5], "threshold": 4, "tolerance": 1},
    forged={"quorum": 3, "threshold": 3, "tolerance": 2},
)
def split_quorums(session: Session) -> str:
    """Have two quorums that share only a colluder sign two U3: each gives one half of a mask."""
    a, b, c, d, colluder = session.u2
    before = session.restored(colluder, MemoryJournal())
    left, right = (a, b, colluder), (c, d, colluder)
    _, masks = disclosed(session, left, session.finish(left))
    session.parties[colluder] = before
    keys, _ = disclosed(session, right, session.finish(right))
    return claim_both_halves(session, keys[a], masks[a])


def pool_shares(session: Session) -> str:
    """Rebuild the victim's secrets from the shares that it sent to colluders, who are as many as the threshold."""
    session.upload([session.victim])
    keys, masks = {}, {}
    for u in session.peers(session.victim)[: session.parameters.threshold]:
        shares = session.state(u).shares[session.victim]
        keys[u], masks[u], *_ = split(shares, sharing.SHARE_BYTES, len(shares) // sharing.SHARE_BYTES)
    return claim_both_halves(session, keys, masks)


@attack(
    "a graph that can be cut in two",
    graphs=(SPARSE,),
    checks=(names.GRAPH, names.THRESHOLDS, names.RULES),
    after=UPLOADS,
    agreed={"clients": (*IDS, *SPARE), "degree": 4, "threshold": 4, "quorum": 6, "tolerance": 4},
    forged={"threshold": 3},
)
def cut_graph(session: Session) -> str:
    """Declare clients lost so that, with t_k one too low, the rest falls apart: two sums of half the noise."""
    one, other = halves(session.parameters)
    u3 = sorted(one | other)
    return claim_little_noise(session, one, *disclosed(session, u3, session.finish(u3)))


def halves(parameters: Parameters) -> tuple[frozenset[ClientId], frozenset[ClientId]]:
    """Find T clients without whom the others fall into two parts of one size."""
    everyone = frozenset(parameters.clients)
    for lost in combinations(parameters.clients, parameters.tolerance):
        left = everyone.difference(lost)
        part = frozenset([min(left)])
        while (grown := left & frozenset().union(*(parameters.neighbourhoods[u] for u in part))) != part:
            part = grown
        if 2 * len(part) == len(left):
            return part, left - part
    raise Foiled("the graph", "it does not fall into two parts")


@attack(
    "a client more than once in U",
    graphs=(COMPLETE,),
    checks=(names.IDENTITY, names.RULES),
    forged={"members": words(*IDS, IDS[-1], IDS[-1]), "quorum": 6, "threshold": 6},
)
def repeat_client(session: Session) -> str:
    """Repeat a client, so that the cohort looks larger: everyone adds less noise than the true one needs."""
    enter(session)
    plan, distinct = session.parameters.plans[0], len(set(session.parameters.clients))
    noise = (distinct - plan.tolerance - plan.colluders) * plan.added
    foiled_unless(noise < plan.variance, "the rule", "it is enough")
    return f"only {noise} of noise {plan.variance} is left"


@attack(
    "chunks that overlap",
    checks=(names.VECTOR, names.RULES),
    after=SET_UP,
    # 0 to 4, an empty one, 2 to 8.
    forged={"ends": words(4, 2, 8), "variances": dict.fromkeys(range(3), "64")},
)
def release_twice(session: Session) -> str:
    """Release coordinates in two chunks, with independent noise, for the price of one: their mean has half."""
    for chunk in (0, 2):
        session.upload(chunk=chunk)
        claim_sum(session, session.u2, *disclosed(session, session.u2, session.finish(session.u2, chunk)), chunk)
    return "coordinates 2 and 3 were released twice, with independent noise"


on_complete = partial(Attack, graphs=(COMPLETE,))
on_sparse = partial(Attack, graphs=(SPARSE,))

ATTACKS = (
    split_quorums,
    on_complete(
        "T_C >= t",
        "As many colluders are allowed for as there are shares in a secret: they open an update without anyone else.",
        pool_shares,
        checks=(names.THRESHOLDS, names.RULES),
        after=SET_UP,
        agreed={"mode": SEMI_HONEST},
        forged={"quorum": 2, "threshold": 2, "colluders": 2},
    ),
    Attack(
        "a share threshold below the rule",
        "Secrets are shared so that one share gives them away; the quorum, which the rest is about, looks right.",
        pool_shares,
        checks=(names.GRAPH, names.THRESHOLDS, names.RULES),
        after=SET_UP,
        forged={"threshold": 1},
    ),
    cut_graph,
    Attack(
        "T > n - t",
        "The noise claims to tolerate more dropouts than leave a quorum: the promise of the round is void.",
        enter,
        checks=(names.THRESHOLDS, names.RULES),
        forged={"tolerance": 4},
    ),
    repeat_client,
    on_sparse(
        "SecAgg+ without a beacon",
        "Without a beacon the server can try parameters, long before the round, until colluders surround the victim.",
        enter,
        checks=(names.UNPREDICTABLE, names.GRAPH, names.THRESHOLDS, names.RULES),
        forged={"beacon": b""},
    ),
    on_complete(
        "a field of a megabyte",
        "A field that nobody uses is as long as a message can be: every client keeps it and hashes it again and again.",
        enter,
        checks=(names.CEILINGS, names.RULES),
        forged={"beacon": bytes(1 << 20)},
    ),
    on_complete(
        "parameters that are too long to be read",
        "The parameters are longer than those of any round: reading them alone is to cost the client memory.",
        enter,
        overlapping=(names.SIZE, names.CEILINGS),
        forged={"beacon": bytes(4 << 20)},
    ),
    on_complete(
        "more proofs than there can be clients",
        "A map of many small entries takes twenty times its size in memory, before anybody has looked at it.",
        partial(enter, proofs=dict.fromkeys(map(ClientId, range(MOST_CLIENTS + 1)), b"")),
    ),
    on_complete(
        "a variance written in another way",
        "One variance in two spellings makes two rounds of one: records and hashes of it no longer agree.",
        enter,
        checks=(names.WRITTEN,),
        forged={"variances": {0: "128/2"}},
    ),
    on_complete(
        "a variance of a chunk that is not there",
        "What nobody uses makes two rounds of one, too: the server has as many hashes of it as it likes.",
        enter,
        checks=(names.NOISE, names.RULES),
        forged={"variances": {0: "64", 1: "64"}},
    ),
    on_complete(
        "other noise tables",
        "The round names tables that this program does not build: others would draw other noise from the same seeds.",
        enter,
        checks=(names.TABLES,),
        forged={"tables": bytes(32)},
    ),
    release_twice,
    on_complete(
        "a round without the client itself",
        "A client that is not in U is asked for signed keys, to be used where nobody expects it.",
        partial(enter, owner=careful_owner(OUTSIDER)),
        checks=(names.MEMBER,),
    ),
)
