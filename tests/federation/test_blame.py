"""Liars end rounds at most as often as there are liars, and not more honest clients have to go than liars.

Real machines, a fixed cohort: a round that fails is run again without those who have to go, until one goes through.
"""

import random

import pytest
from msgspec.structs import replace

from dordis.crypto import signature
from dordis.crypto.sharing import SHARE_BYTES
from dordis.errors import RoundFailed
from dordis.federation.retry import to_evict
from dordis.protocols.neighbourhood import least_quorum, least_threshold
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, agree_on
from dordis.protocols.secagg import statements
from dordis.protocols.secagg.messages import DeliverShares, RemoveNoise, ShareKeys, Unmask
from tests.protocols.rounds import Round, make_client, random_inputs, signing_key

T_C = 2
GRAPHS = ("complete", "SecAgg+")


def agreed(clients, index, graph):
    """Return parameters with T = 1 and T_C = 2."""
    n = len(clients)
    settings = {"mode": SEMI_HONEST, "threshold": n // 2 + 1}
    if graph == "SecAgg+":
        k = min(n - 2 + n % 2, 16) if n > 7 else n - 1  # fewer have no sparse graph that stands two colluders
        threshold, quorum = least_threshold(n, T_C, MALICIOUS, k), least_quorum(n, T_C, MALICIOUS)
        settings = {"mode": MALICIOUS, "degree": k, "threshold": threshold, "quorum": quorum, "beacon": bytes(32)}
    return agree_on(
        run=bytes(32), index=index, clients=clients, tolerance=1, colluders=T_C, bits=16, ends=[1], variances=[4],
        **settings,
    )  # fmt: skip


def flipped(data, place=0):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


class Liar:
    """A client that answers honestly but for what its lies make of it; each is a kind of request and a change."""

    def __init__(self, p, me, client, lie):
        self.p, self.me, self._client = p, me, client
        self._kind, self._change = lie

    def handle(self, request):
        reply = self._client.handle(request)
        if type(request) is not self._kind:
            return reply
        changed = self._change(self, reply)
        if self._kind is ShareKeys and self.p.is_malicious:
            statement = statements.shares(self.p, self.me, changed)
            return replace(changed, signature=signature.sign(signing_key(self.me), statement))
        return changed

    def held(self):
        return sorted(self._client.state.shares)


def spoil_ciphertext(target):
    def change(liar, reply):
        if target not in reply.ciphertexts:
            return reply
        return replace(reply, ciphertexts={**reply.ciphertexts, target: flipped(reply.ciphertexts[target])})

    return ShareKeys, change


def spoil_hash(target):
    def change(liar, reply):
        if target not in reply.ciphertexts:
            return reply
        sent = reply.ciphertexts[target]
        return replace(reply, ciphertexts={**reply.ciphertexts, target: flipped(sent, len(sent) - 20)})

    return ShareKeys, change


def accuse(target):
    def change(liar, reply):
        there = target in liar.held() and target != liar.me
        return replace(reply, accused=liar.p.pack([target])) if there else reply

    return DeliverShares, change


def accuse_all(liar, reply):
    return replace(reply, accused=liar.p.pack([u for u in liar.held() if u != liar.me]))


def show_wrong_share(target):
    def change(liar, reply):
        survivors = liar.held()
        if target not in survivors or len(reply.mask_shares) != SHARE_BYTES * len(survivors):
            return reply
        place = SHARE_BYTES * survivors.index(target)
        return replace(reply, mask_shares=flipped(reply.mask_shares, place))

    return Unmask, change


ELSEWHERE = {
    "other commitments": (
        ShareKeys,
        lambda liar, reply: replace(reply, commitments=flipped(reply.commitments)),
    ),
    "malformed shares": (ShareKeys, lambda liar, reply: replace(reply, hashes=b"")),
    "accusations of everyone": (DeliverShares, accuse_all),
    "a malformed accusation": (DeliverShares, lambda liar, reply: replace(reply, accused=b"")),
    "other seeds": (
        Unmask,
        lambda liar, reply: replace(reply, seeds=dict.fromkeys(reply.seeds, bytes(32))),
    ),
    "a malformed unmasking": (Unmask, lambda liar, reply: replace(reply, mask_shares=b"")),
    "wrong shares of noise": (
        RemoveNoise,
        lambda liar, reply: replace(reply, shares=flipped(reply.shares)),
    ),
}
"""Lies that need no target."""
AIMED = {
    "a ciphertext": spoil_ciphertext,
    "a hash": spoil_hash,
    "an accusation": accuse,
    "a share": show_wrong_share,
}


def lies(clients):
    """Return every lie with every target."""
    aimed = {f"{what}, {target}": lie(target) for what, lie in AIMED.items() for target in clients}
    return ELSEWHERE | aimed


def go_through(n, graph, lying, silent):
    """Run rounds until one goes through; return how many lies ended, and who had to go.

    So many honest clients do not answer Unmask that the fewest are left who can.
    """
    going, ended = set(), 0
    while True:
        p = agreed([u for u in range(1, n + 1) if u not in going], ended, graph)
        clients = {u: make_client(p, u, x) for u, x in random_inputs(p, 1).items()}
        clients |= {u: Liar(p, u, clients[u], lie) for u, lie in lying.items() if u in clients}
        honest = [u for u in p.clients if u not in lying]
        missing = honest[: silent(p)]
        session = Round(p, random_inputs(p, 1), [(u, "Unmask", 0) for u in missing], clients=clients)
        outcome = session.outcome()
        if not isinstance(outcome, RoundFailed):
            return ended, going | outcome[0].named
        fresh = to_evict(outcome, p.colluders, p.colluders_around)
        assert fresh, outcome
        going, ended = going | fresh, ended + 1
        check_evictions(going, lying)


def check_evictions(going, lying):
    assert len(going.intersection(lying)) >= len(going.difference(lying))


def fewest(p):
    """Silence as many as a round on the complete graph survives; on a sparse one neighbourhoods would fall short."""
    return len(p.clients) - p.quorum if p.degree == 0 else 0


def check(n, graph, lying, silent=fewest):
    ended, going = go_through(n, graph, lying, silent)
    assert ended <= T_C
    check_evictions(going, lying)
    return ended


LIES = lies(range(1, 11))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", [*ELSEWHERE, *(f"{what}, 5" for what in AIMED)])
def test_a_lie_of_each_kind_beside_an_accusation(graph, kind):
    assert check(10, graph, {3: LIES[kind], 7: accuse(5)}) >= 1


def test_nobody_has_to_go_when_nobody_lies():
    assert go_through(10, "complete", {}, fewest) == (0, frozenset())


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("first", LIES)
def test_every_lie_of_one_liar_with_every_lie_of_another(graph, first):
    for second in list(LIES)[list(LIES).index(first) :]:
        check(10, graph, {3: LIES[first], 7: LIES[second]})


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("sample", range(4))
def test_lies_among_a_hundred(graph, sample):
    rng = random.Random(f"{graph} {sample}")
    liars = rng.sample(range(1, 101), T_C)
    all_lies = lies(range(1, 101))
    check(100, graph, {u: all_lies[rng.choice(sorted(all_lies))] for u in liars})
