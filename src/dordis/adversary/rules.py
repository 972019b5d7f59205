"""Parameters that break a rule of the protocol, and what the rule is for."""

from abc import abstractmethod
from copy import deepcopy
from itertools import combinations

import msgspec
import numpy as np

from dordis.adversary import names
from dordis.adversary.attack import Attack, Foiled, gained, recovered
from dordis.adversary.cast import BOTH, IDS, OUTSIDER, SPARE, SPARSE, agreed, forged, honest_client, random_vector
from dordis.adversary.session import Session, Trail, deliver
from dordis.crypto import sharing
from dordis.crypto.suite import DEFAULT
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId, MemoryJournal
from dordis.protocols.parameters import SEMI_HONEST, Parameters
from dordis.protocols.secagg import recovery
from dordis.protocols.secagg.messages import AdvertiseKeys, Advertisement

_KEY, _SELF_MASK = 0, 1


def words(numbers: tuple[int, ...]) -> bytes:
    """Write numbers as parameters do."""
    return b"".join(number.to_bytes(8, "little") for number in numbers)


class NoMajority(Attack):
    """2t = n + T_C: two quorums need no honest client in common, and the views can be split for good."""

    name = "2t <= n + T_C: two quorums, split views"
    text = (
        "Two quorums that share only a colluder sign two U3; each gives one half of a mask, and together they give all."
    )
    checks = (names.MAJORITY, names.THRESHOLDS, names.RULES)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Five clients, t = 3, T_C = 1: U3 is {1, 2, 5} for some and {3, 4, 5} for others."""
        good = agreed(graph, clients=IDS[:5], threshold=4, tolerance=1)
        session = Session(forged(good, quorum=3, threshold=3, tolerance=2), trail)
        session.set_up()
        session.upload()
        a, b, c, d, colluder = session.u2
        state = deepcopy(session.honest[colluder].state)
        left, right = (a, b, colluder), (c, d, colluder)
        _, masks = session.disclosed(left, session.finish(left))
        session.parties[colluder] = honest_client(
            colluder, session.inputs[colluder], state=state, journal=MemoryJournal()
        )
        keys, _ = session.disclosed(right, session.finish(right))
        private, self_mask = session.rebuild(keys[a]), session.rebuild(masks[a])
        peers = {u: session.masking_key(u) for u in session.u2 if u != a}
        return recovered(session, a, session.stripped(a, self_mask, private, peers))


class ColludersHoldEnough(Attack):
    """The share threshold is so low that colluders need nobody else."""

    @abstractmethod
    def parameters(self, graph: str) -> Parameters:
        """Return bad parameters."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Rebuild the victim's secrets from the shares that were sent to colluders."""
        session = Session(self.parameters(graph), trail)
        session.set_up()
        victim = session.u2[0]
        session.upload([victim])
        neighbours = sorted(session.parameters.neighbourhoods[victim] - {victim})
        colluders = neighbours[: session.parameters.threshold]
        shares = {u: session.honest[u].state.shares[victim] for u in colluders}
        private, self_mask = (session.rebuild({u: part(s, i) for u, s in shares.items()}) for i in (_KEY, _SELF_MASK))
        peers = {u: session.masking_key(u) for u in neighbours}
        return recovered(session, victim, session.stripped(victim, self_mask, private, peers))


def part(shares: bytes, place: int) -> bytes:
    """Return one of the shares that a dealer sent."""
    return shares[place * sharing.SHARE_BYTES : (place + 1) * sharing.SHARE_BYTES]


class ColludersReachThreshold(ColludersHoldEnough):
    """T_C >= t."""

    name = "T_C >= t"
    text = "As many colluders are allowed for as there are shares in a secret: they open an update without anyone else."
    checks = (names.THRESHOLDS, names.RULES)

    def parameters(self, graph: str) -> Parameters:
        """t = T_C = 2."""
        return forged(agreed(graph, mode=SEMI_HONEST), quorum=2, threshold=2, colluders=2)


class ShareThresholdTooLow(ColludersHoldEnough):
    """The quorum is as it should be, and the threshold of the shares is 1."""

    name = "a share threshold below the rule"
    text = "Secrets are shared so that one share gives them away; the quorum, which the rest is about, looks right."
    graphs = BOTH
    checks = (names.GRAPH, names.THRESHOLDS, names.RULES)

    def parameters(self, graph: str) -> Parameters:
        """t (or t_k) = 1."""
        return forged(agreed(graph), threshold=1)


class SplitGraph(Attack):
    """t_k one below the rule: dropping two runs of neighbours cuts the circle in two, and both parts come out."""

    name = "a graph that can be cut in two"
    text = "With t_k one too low, clients are declared lost so that the rest falls apart: two sums of half the noise."
    graphs = (SPARSE,)
    checks = (names.GRAPH, names.THRESHOLDS, names.RULES)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ten clients, k = 4, T = 4, t_k = 3 instead of 4."""
        good = agreed(graph, clients=(*IDS, *SPARE), degree=4, threshold=4, quorum=6, tolerance=4)
        session = Session(forged(good, threshold=3), trail)
        session.set_up()
        session.upload()
        one, other = halves(session.parameters)
        u3 = one | other
        keys, masks = session.disclosed(u3, session.finish(sorted(u3)))
        total: Vector = np.sum([session.vector(u) for u in one], axis=0, dtype=np.uint32)
        recovery.remove_masks(
            DEFAULT,
            total,
            session.parameters,
            0,
            {u: session.rebuild(keys[u]) for u in keys},
            {u: session.rebuild(masks[u]) for u in one},
            {u: session.masking_key(u) for u in one},
        )
        plan = session.parameters.plans[0]
        return gained(
            bool((total == session.true_sum(one)).all()) and len(one) * plan.added < plan.variance,
            f"the sum of {len(one)} of {len(u3)} survivors came out, with as little noise",
            "masks that the adversary does not know",
            "what came out is not the sum",
        )


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


class RefusedAtOnce(Attack):
    """Parameters that the victim must refuse before it sends anything."""

    @abstractmethod
    def parameters(self, graph: str) -> Parameters:
        """Return bad parameters."""

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask the first client for its keys."""
        parameters = self.parameters(graph)
        session = Session(parameters, trail)
        session.advertise(parameters.clients[:1])
        return self.gained(parameters)

    def gained(self, parameters: Parameters) -> str:
        """Say what it is good for."""
        return "the victim entered a round that breaks a rule"


class ToleranceTooLarge(RefusedAtOnce):
    """T > n - t."""

    name = "T > n - t"
    text = "The noise claims to tolerate more dropouts than leave a quorum: the promise of the round is void."
    graphs = BOTH
    checks = (names.THRESHOLDS, names.RULES)

    def parameters(self, graph: str) -> Parameters:
        """n = 8, q = 5, T = 4."""
        return forged(agreed(graph), tolerance=4)


class RepeatedClient(RefusedAtOnce):
    """U has one client three times: n looks larger than it is, and everyone adds less noise."""

    name = "a client more than once in U"
    text = "Repeating a client makes the cohort look larger: everyone adds less noise than the true cohort needs."
    checks = (names.IDENTITY, names.RULES)

    def parameters(self, graph: str) -> Parameters:
        """Ten entries, eight clients."""
        repeated = (*IDS, IDS[-1], IDS[-1])
        return forged(agreed(graph), members=words(repeated), quorum=6, threshold=6)

    def gained(self, parameters: Parameters) -> str:
        """Count the noise of honest survivors."""
        plan, distinct = parameters.plans[0], len(set(parameters.clients))
        noise = (distinct - plan.tolerance - plan.colluders) * plan.added
        return gained(
            noise < plan.variance, f"only {noise} of noise {plan.variance} is left", "the rule", "it is enough"
        )


class NoBeacon(RefusedAtOnce):
    """The circle of SecAgg+ depends on nothing but what the server chooses."""

    name = "SecAgg+ without a beacon"
    text = "Without a beacon the server can try parameters, long before the round, until colluders surround the victim."
    graphs = (SPARSE,)
    checks = (names.UNPREDICTABLE, names.GRAPH, names.THRESHOLDS, names.RULES)

    def parameters(self, graph: str) -> Parameters:
        """Leave it out."""
        return forged(agreed(graph), beacon=b"")


class VarianceWrittenOtherwise(RefusedAtOnce):
    """A variance that is not written as it should be."""

    name = "a variance written in another way"
    text = "One variance in two spellings makes two rounds of one: records and hashes of it no longer agree."
    checks = (names.NOISE, names.RULES)

    def parameters(self, graph: str) -> Parameters:
        """Do not reduce the fraction."""
        return forged(agreed(graph), variances={0: "128/2"})


class AnotherNoiseTable(RefusedAtOnce):
    """The noise is to be drawn from other tables."""

    name = "other noise tables"
    text = "The round names tables that this program does not build: others would draw other noise from the same seeds."
    checks = (names.TABLES,)

    def parameters(self, graph: str) -> Parameters:
        """Name none."""
        return msgspec.structs.replace(agreed(graph), tables=bytes(32))


class OverlappingChunks(Attack):
    """Some coordinates are in two chunks and so are released twice, each time with fresh noise."""

    name = "chunks that overlap"
    text = "Coordinates in two chunks come out twice with independent noise, for the price of one: their mean has half."
    graphs = BOTH
    checks = (names.VECTOR, names.RULES)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Chunks 0:4, an empty one, and 2:8."""
        variances = dict.fromkeys(range(3), "64")
        session = Session(forged(agreed(graph), ends=words((4, 2, 8)), variances=variances), trail)
        session.set_up()
        for chunk in (0, 2):
            session.upload(chunk=chunk)
            total = session.total(session.u2, session.finish(session.u2, chunk), chunk)
            if (total != session.true_sum(session.u2, chunk=chunk)).any():
                raise Foiled("masks that the adversary does not know", "what came out is not the sum")
        return "coordinates 2 and 3 were released twice, with independent noise"


class NotAMember(Attack):
    """A client is asked into a round that does not name it."""

    name = "a round without the client itself"
    text = "A client that is not in U is asked for signed keys, to be used where nobody expects it."
    checks = (names.MEMBER,)

    def attempt(self, graph: str, trail: Trail) -> str:
        """Ask the outsider."""
        parameters = agreed(graph)
        outsider = honest_client(OUTSIDER, random_vector(parameters))
        deliver(outsider, AdvertiseKeys(parameters), Advertisement, trail)
        return "a client signed keys for a round that it is not in"


ATTACKS: tuple[Attack, ...] = (
    NoMajority(),
    ColludersReachThreshold(),
    ShareThresholdTooLow(),
    SplitGraph(),
    ToleranceTooLarge(),
    RepeatedClient(),
    NoBeacon(),
    VarianceWrittenOtherwise(),
    AnotherNoiseTable(),
    OverlappingChunks(),
    NotAMember(),
)
