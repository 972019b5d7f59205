"""The server proposes parameters that break a rule of the protocol."""

from functools import partial
from itertools import combinations

from dordis.crypto import sharing
from dordis.privacy.further_releases import FurtherRelease
from dordis.protocol import ClientId, MemoryJournal
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.limits import MOST_CLIENTS
from dordis.protocols.parameters import SEMI_HONEST, Parameters
from dordis.protocols.secagg.masking import split
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import enter
from tests.adversary.participants import COMPLETE, DIM, IDS, OUTSIDER, SPARE, SPARSE, WHOLE, careful_owner, words
from tests.adversary.reconstruct import claim_both_halves, claim_little_noise, claim_sum, disclosed
from tests.adversary.session import SET_UP, UPLOADS, Foiled, Session, foiled_unless


@attack(
    "2t <= n + T_C: two quorums, split views",
    refused_by="check_majority (ParametersRefused)",
    stage="AdvertiseKeys",
    graphs=(COMPLETE,),
    checks=(names.MAJORITY, names.THRESHOLDS, names.RULES),
    after=UPLOADS,
    agreed={"clients": IDS[:5], "threshold": 4, "tolerance": 1},
    forged={"quorum": 3, "threshold": 3, "n_min": 3},
)
def split_quorums(session: Session) -> str:
    """Have two quorums that share only a colluder sign two U3: each discloses one part of a mask."""
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
    refused_by="check_neighbourhood (ParametersRefused)",
    stage="AdvertiseKeys",
    graphs=(SPARSE,),
    checks=(names.GRAPH, names.THRESHOLDS, names.RULES),
    after=UPLOADS,
    agreed={"clients": (*IDS, *SPARE), "degree": 4, "threshold": 4, "quorum": 6, "tolerance": 4},
    forged={"threshold": 3},
)
def cut_graph(session: Session) -> str:
    """Lose clients so that, with t_k one too low, the graph falls apart: two sums with half of the noise each."""
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
    refused_by="check_members (ParametersRefused)",
    stage="AdvertiseKeys",
    graphs=(COMPLETE,),
    checks=(names.MEMBERS, names.RULES),
    forged={"members": words(*IDS, IDS[-1], IDS[-1]), "n_min": 7, "n_max": 10, "quorum": 6, "threshold": 6},
)
def repeat_client(session: Session) -> str:
    """Repeat a client so that the cohort looks larger: each client adds less noise than the true cohort needs."""
    enter(session)
    plan, distinct = session.parameters.plans[0], len(set(session.parameters.clients))
    noise = (distinct - plan.tolerance - plan.colluders) * plan.added_variance
    foiled_unless(noise < plan.variance, "the rule", "it is enough")
    return f"only {noise} of noise {plan.variance} is left"


@attack(
    "chunks that overlap",
    refused_by="check_vector (ParametersRefused)",
    stage="AdvertiseKeys",
    checks=(names.VECTOR, names.RULES),
    after=SET_UP,
    # 0 to 4, an empty one, 2 to 8.
    forged={"ends": words(4, 2, 8), "variances": dict.fromkeys(range(3), "64")},
)
def release_twice(session: Session) -> str:
    """Release coordinates in two chunks with independent noise at the cost of one: their mean has half of the noise."""
    for chunk in (0, 2):
        session.upload(chunk=chunk)
        claim_sum(session, session.u2, *disclosed(session, session.u2, session.finish(session.u2, chunk)), chunk)
    return "coordinates 2 and 3 were released twice, with independent noise"


TWICE = {
    "ends": words(DIM, DIM + 1, DIM + 2),
    "variances": dict.fromkeys(range(3), "64"),
    "encoding": encoding_of(WHOLE, bytes(32), [FurtherRelease("count", 1)] * 2),
}
on_complete = partial(Attack, graphs=(COMPLETE,))
on_sparse = partial(Attack, graphs=(SPARSE,))

ATTACKS = (
    split_quorums,
    on_complete(
        "two further releases of one name",
        "A second release takes the value that the client gives for the first, so that one value is released twice.",
        enter,
        refused_by="check_further (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.FURTHER,),
        forged=TWICE,
    ),
    on_complete(
        "T_C >= t",
        "Allow as many colluders as the share threshold: they recover an update without any honest client.",
        pool_shares,
        refused_by="check_thresholds (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.THRESHOLDS, names.RULES),
        after=SET_UP,
        agreed={"mode": SEMI_HONEST},
        forged={"quorum": 2, "threshold": 2, "colluders": 2},
    ),
    on_complete(
        "a share threshold below the rule",
        "Secrets are shared so that one share reveals them, while the quorum keeps its rule.",
        pool_shares,
        refused_by="check_graph (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.GRAPH, names.THRESHOLDS, names.RULES),
        after=SET_UP,
        forged={"threshold": 1},
    ),
    on_sparse(
        "a share threshold below the rule of SecAgg+",
        "Secrets are shared so that one share reveals them, while the quorum keeps its rule.",
        pool_shares,
        refused_by="check_neighbourhood (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.GRAPH, names.THRESHOLDS, names.RULES),
        after=SET_UP,
        forged={"threshold": 1},
    ),
    cut_graph,
    Attack(
        "T > n - t",
        "The noise claims to tolerate more dropouts than leave a quorum.",
        enter,
        refused_by="check_thresholds (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.THRESHOLDS, names.RULES),
        forged={"n_min": 4},
    ),
    repeat_client,
    on_complete(
        "a mode that nobody knows",
        "The round is neither malicious nor semi-honest by its name: clients sign nothing.",
        enter,
        refused_by="check_identity (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.IDENTITY, names.RULES),
        forged={"mode": "unheard of"},
    ),
    on_sparse(
        "SecAgg+ without a beacon",
        "Without a beacon the server can try parameters, long before the round, until colluders surround the victim.",
        enter,
        refused_by="check_unpredictable (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.UNPREDICTABLE, names.GRAPH, names.THRESHOLDS, names.RULES),
        forged={"beacon": b""},
    ),
    on_complete(
        "a field of a megabyte",
        "An unused field is as long as a message can be: every client stores it and hashes it repeatedly.",
        enter,
        refused_by="check_ceilings (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.CEILINGS, names.RULES),
        forged={"beacon": bytes(1 << 20)},
    ),
    on_complete(
        "parameters that are too long to be read",
        "The parameters are longer than any round's, so that reading them costs the client memory.",
        enter,
        refused_by="check_size (MalformedMessage)",
        stage="AdvertiseKeys",
        overlapping=(names.SIZE, names.CEILINGS),
        forged={"beacon": bytes(4 << 20)},
    ),
    on_complete(
        "more proofs than there can be clients",
        "A map of many small entries takes twenty times its size in memory before it can be checked.",
        partial(enter, proofs=dict.fromkeys(map(ClientId, range(MOST_CLIENTS + 1)), b"")),
        refused_by="decode (MalformedMessage)",
        stage="AdvertiseKeys",
    ),
    on_complete(
        "a variance in another spelling",
        "A variance spelled in two ways gives one round two hashes, so that records and hashes disagree.",
        enter,
        refused_by="check_variance_text (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.WRITTEN,),
        forged={"variances": {0: "128/2"}},
    ),
    on_complete(
        "a variance of a chunk that does not exist",
        "An unused entry gives one round as many hashes as the server likes.",
        enter,
        refused_by="check_noise (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.NOISE, names.RULES),
        forged={"variances": {0: "64", 1: "64"}},
    ),
    on_complete(
        "other noise tables",
        "The parameters name noise tables that this version does not build: equal seeds would give different noise.",
        enter,
        refused_by="check_tables (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.TABLES,),
        forged={"tables": bytes(32)},
    ),
    release_twice,
    on_complete(
        "a round without the client itself",
        "A client that is not in U is asked for signed keys.",
        partial(enter, owner=careful_owner(OUTSIDER)),
        refused_by="check_member (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.MEMBER,),
    ),
)
