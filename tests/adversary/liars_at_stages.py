"""Clients that lie, and rounds with them: real machines, whose honest answers are computed once.

What a client draws follows from its id alone, so that it answers the same requests in the same way in every round: the
answers of its machine, and the secrets that two clients agree on, are kept for all rounds of a process.
"""

import hashlib
import random
from dataclasses import replace as with_field
from functools import cache, cached_property

import numpy as np
from msgspec.structs import replace

from dordis import wire
from dordis.crypto import agreement, signature
from dordis.crypto.sharing import SHARE_BYTES
from dordis.crypto.suite import DEFAULT
from dordis.errors import RoundFailed
from dordis.protocols.cohort import agree_on
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg.messages import DeliverShares, RemoveNoise, ShareKeys, Unmask, shares_statement
from dordis.protocols.sparse_graph import least_quorum, least_threshold
from dordis.runs.retry import to_evict
from tests.crypto.suites import like
from tests.protocols.rounds import Round, make_client, signing_key

T_C = 2
GRAPHS = ("complete", "SecAgg+")
SUITE = with_field(
    DEFAULT,
    agreement=like(agreement, agree=cache(agreement.agree), public=cache(agreement.public_key)),
    signature=like(signature, sign=cache(signature.sign), verify=cache(signature.verify)),
)


@cache
def agreed(clients, graph):
    """Return parameters with T = 1 and T_C = 2; a cohort falls, so that its size tells rounds apart."""
    n = len(clients)
    settings = {"mode": SEMI_HONEST, "threshold": n // 2 + 1}
    if graph == "SecAgg+":
        k = min(n - 2 + n % 2, 16) if n > 7 else n - 1  # fewer have no sparse graph that stands two colluders
        threshold, quorum = least_threshold(n, T_C, MALICIOUS, k), least_quorum(n, T_C, MALICIOUS)
        settings = {"mode": MALICIOUS, "degree": k, "threshold": threshold, "quorum": quorum, "beacon": bytes(32)}
    return agree_on(
        run=bytes(32), index=n, clients=clients, tolerance=1, colluders=T_C, bits=16, ends=[1], variances=[4],
        **settings,
    )  # fmt: skip


ANSWERS = {}
"""What machines have answered, by the client and a hash of all requests so far."""


class Remembered:
    """A client whose machine is run only if nobody had the same requests before."""

    def __init__(self, p, me):
        self.p, self.me = p, me
        self._waiting = []
        self._history = hashlib.sha256(b"%d" % me + p.digest)

    def handle(self, request):
        self._history.update(wire.encode(request))
        self._waiting.append(request)
        key = self._history.digest()
        if key not in ANSWERS:
            for one in self._waiting:
                ANSWERS[key] = self._machine.handle(one)
            self._waiting = []
        return ANSWERS[key]

    @cached_property
    def _machine(self):
        entropy = random.Random(self.me).randbytes
        return make_client(self.p, self.me, np.zeros(1, np.uint32), entropy=entropy, suite=SUITE)


class Liar(Remembered):
    """A client that answers honestly but for what its lies make of it; each is a kind of request and a change."""

    def __init__(self, p, me, lies):
        super().__init__(p, me)
        self._lies = lies
        self.told = set()

    def handle(self, request):
        reply = honest = super().handle(request)
        if isinstance(request, DeliverShares):
            self.held = sorted({self.me, *request.ciphertexts})
        for kind, change in self._lies:
            reply = change(self, reply) if type(request) is kind else reply
        if reply is honest:
            return reply
        self.told.add(type(request))
        if type(request) is ShareKeys and self.p.is_malicious:
            statement = shares_statement(self.p, self.me, reply)
            return replace(reply, signature=signature.sign(signing_key(self.me), statement))
        return reply


def flipped(data, place=0):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


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


def accuse(*targets):
    def change(liar, reply):
        there = [u for u in targets if u in liar.held and u != liar.me]
        return replace(reply, accused=liar.p.pack(there)) if there else reply

    return DeliverShares, change


def accuse_all(liar, reply):
    return replace(reply, accused=liar.p.pack([u for u in liar.held if u != liar.me]))


def show_wrong_share(target):
    def change(liar, reply):
        if target not in liar.held or len(reply.mask_shares) != SHARE_BYTES * len(liar.held):
            return reply
        place = SHARE_BYTES * liar.held.index(target)
        return replace(reply, mask_shares=flipped(reply.mask_shares, place))

    return Unmask, change


def other_seeds(liar, reply):
    return replace(reply, seeds=dict.fromkeys(reply.seeds, bytes(32))) if reply.seeds else reply


UNAIMED = {
    "other commitments": (ShareKeys, lambda liar, reply: replace(reply, commitments=flipped(reply.commitments))),
    "malformed shares": (ShareKeys, lambda liar, reply: replace(reply, hashes=b"")),
    "accusations of everyone": (DeliverShares, accuse_all),
    "a malformed accusation": (DeliverShares, lambda liar, reply: replace(reply, accused=b"")),
    "other seeds": (Unmask, other_seeds),
    "a malformed unmasking": (Unmask, lambda liar, reply: replace(reply, mask_shares=b"")),
    "wrong shares of noise": (RemoveNoise, lambda liar, reply: replace(reply, shares=flipped(reply.shares))),
    "malformed shares of noise": (RemoveNoise, lambda liar, reply: replace(reply, shares=b"")),
}
"""Lies that need no target."""
AIMED = {
    "a ciphertext": spoil_ciphertext,
    "a hash": spoil_hash,
    "an accusation": accuse,
    "a share": show_wrong_share,
}
STAGES = {
    1: (
        "other commitments", "malformed shares", "accusations of everyone", "a malformed accusation", "a ciphertext",
        "a hash", "an accusation",
    ),
    4: ("other seeds", "a malformed unmasking", "a share"),
    5: ("wrong shares of noise", "malformed shares of noise"),
}  # fmt: skip
"""The lies that can be told in each stage."""


def lie(kind, target):
    """Return a lie by its name, aimed at a target if it is one that is."""
    return UNAIMED[kind] if kind in UNAIMED else AIMED[kind](target)


def silent_clients(p, lying):
    """Return who does not answer Unmask: as many honest clients as a round survives, first one that owes a seed.

    On a sparse graph that is one at most: more could all be of one neighbourhood.
    """
    honest = [u for u in p.clients if u not in lying]
    owing = [u for u in honest if p.due(0, p.clients)[u]]
    spare = len(p.clients) - p.quorum
    if p.degree:
        spare = min(1, spare, p.degree + 1 - p.threshold)
    return list(dict.fromkeys((*owing[:1], *honest)))[:spare]


def go_through(n, graph, lying):
    """Run rounds until one goes through; return how many lies ended, who had to go, and what lies were told.

    After every round not more honest clients have gone than liars, and after one that a lie ended a liar has.
    """
    going, ended, told = frozenset(), 0, set()
    while True:
        p = agreed(tuple(u for u in range(1, n + 1) if u not in going), graph)
        clients = {u: Liar(p, u, lying[u]) if u in lying else Remembered(p, u) for u in p.clients}
        losses = [(u, "Unmask", 0) for u in silent_clients(p, lying)]
        outcome = Round(p, {}, losses, clients=clients, suite=SUITE).outcome()
        told |= {(u, kind) for u in lying if u in clients for kind in clients[u].told}
        if not isinstance(outcome, RoundFailed):
            going |= outcome[0].named
            check_evictions(going, lying)
            return ended, going, told
        fresh = to_evict(outcome, p.colluders, p.colluders_around)
        assert not fresh.isdisjoint(lying), outcome
        going, ended = going | fresh, ended + 1
        check_evictions(going, lying)


def check_evictions(going, lying):
    assert len(going.intersection(lying)) >= len(going.difference(lying))
