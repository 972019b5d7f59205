"""Parties of assisted rounds for tests: made from seeds, faulty helpers, and the expected sum."""

import hashlib
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec
import numpy as np

from dordis.crypto import signature
from dordis.errors import ProtocolError
from dordis.pipeline import executor as drive
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, OpenCall
from dordis.protocols.assisted import AssistedClient, AssistedHelper, AssistedServer
from dordis.protocols.assisted.messages import (
    AgreeOnSurvivors,
    BoxesOpened,
    Entry,
    Introduce,
    OpenBoxes,
    Reveal,
    Revealed,
    SendContribution,
)
from dordis.protocols.assisted.parameters import Options, agree_with_helpers
from dordis.protocols.noise_addition_and_removal import NoisyInput, PrivateServer, client_noise
from dordis.protocols.parameters import MALICIOUS, common_part, complete, pack_words
from dordis.protocols.summing import Roster, SigningKeys
from dordis.simulation.exchange import LocalExchange

RUN, INDEX = bytes(32), 3
ROUND = RUN + INDEX.to_bytes(8, "big")
NOW = 1_000_000.0
BITS, ENDS = 20, (12, 30)


def secret(role, party):
    return hashlib.sha256(b"%b/%d" % (role, party)).digest()


def signing_keys(clients, helpers):
    return SigningKeys(
        {ClientId(u): signature.public_key(secret(b"client", u)) for u in clients},
        {ClientId(h): signature.public_key(secret(b"helper", h)) for h in helpers},
    )


def make_helpers(registry, **options):
    return {
        h: AssistedHelper(
            h, secret=secret(b"helper", h), registry=registry, clock=lambda: NOW,
            entropy=np.random.default_rng(int(h)).bytes, **options,
        )
        for h in registry.helpers
    }  # fmt: skip


@dataclass
class Round:
    """An assisted round of clients 1 to `came`, of n_min to n_max, with helpers 1 to m, of whom f may be faulty."""

    came: int = 7
    n_min: int = 5
    n_max: int = 9
    m: int = 4
    f: int = 1
    mode: str = MALICIOUS
    scheme: Scheme = Scheme.SINGLE
    variances: tuple = (400, 900)
    ends: tuple = ENDS
    colluders: int = 1
    options: dict = field(default_factory=dict)
    absent: tuple = ()
    """Helpers without a key."""
    own: dict = field(default_factory=dict)
    """Changes of the parameters."""
    seed: int = 7
    proofs: dict = field(default_factory=dict)
    """Proofs of selection, by client."""
    helping: dict = field(default_factory=dict)
    """Options of the helpers."""

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        ids = range(1, self.n_max + 3)
        self.registry = signing_keys(ids, range(1, self.m + 1))
        self.helpers = make_helpers(self.registry, **self.helping)
        self.parameters = self.agree()
        self.inputs = {
            ClientId(u): rng.integers(0, 2**BITS, self.ends[-1], dtype=np.uint32) for u in range(1, self.came + 1)
        }
        self.clients = {
            u: AssistedClient(
                u, NoisyInput(x), signing=secret(b"client", u), registry=self.registry, entropy=rng.bytes,
                clock=lambda: NOW,
            )
            for u, x in self.inputs.items()
        }  # fmt: skip
        for u, proof in self.proofs.items():
            self.clients[u].selection_proof = proof

    def agree(self, **common):
        """Return the parameters of a round."""
        answers = {h: helper.handle(Introduce(ROUND)) for h, helper in self.helpers.items()}
        answers |= {ClientId(h): BoxesOpened(b"") for h in self.absent}
        given = {
            "run": RUN, "index": INDEX, "n_min": self.n_min, "n_max": self.n_max, "bits": BITS, "ends": self.ends,
            "scheme": self.scheme, "mode": self.mode, "colluders": self.colluders,
            "variances": [0] * len(self.ends) if self.scheme is Scheme.NONE else self.variances,
        }  # fmt: skip
        options = msgspec.convert({"faulty": self.f, **self.options}, Options)
        draft = agree_with_helpers(options, common_part(**given | common), Roster(introductions=answers))
        return complete(msgspec.structs.replace(draft, **self.own))

    def server(self):
        """Return a new server."""
        return AssistedServer(self.parameters, self.registry)

    def play(self, server=None, clients=None, lost=()):
        """Run the round; return the outputs of all chunks."""
        self.served = server or self.server()
        exchange = Spooled(clients or self.clients, self.helpers)
        self.exchange = exchange.local
        return drive.run(PrivateServer(self.served, self.parameters), exchange)

    def expected(self, survivors):
        """Return what the sum of each chunk over U3 must be, from the clients' inputs and noise alone."""
        sums = []
        for chunk, span in enumerate(self.parameters.chunks):
            plan, due = self.parameters.plans[chunk], self.parameters.due(chunk, survivors)
            total, left = np.zeros(span.stop - span.start, np.uint32), Fraction(0)
            for u in survivors:
                components = client_noise(self.parameters, chunk, self.clients[u].issued(chunk))
                total += self.inputs[u][span]
                for k, (noise, variance) in enumerate(zip(components, (*plan.base, *plan.removable), strict=True)):
                    if k - len(plan.base) not in due[u] or k < len(plan.base):
                        total += noise
                        left += variance
            sums.append((total % 2**BITS, left))
        return sums

    def assert_right(self, outputs, survivors=None):
        """Compare the outputs with the sums that must come out."""
        survivors = tuple(self.inputs) if survivors is None else tuple(survivors)
        for output, (total, left) in zip(outputs, self.expected(survivors), strict=True):
            assert output.survivors == survivors
            assert (output.total % 2**BITS == total).all()
            assert output.left == left
            assert not output.stayed


class Spooled:
    """An exchange in memory whose open calls can read contributions again."""

    def __init__(self, clients, helpers):
        self.local = LocalExchange(clients, helpers=helpers, coming=lambda: list(clients))

    def __call__(self, requests):
        if isinstance(requests, OpenCall):
            return self._keep(requests)
        return self.local(requests)

    def _keep(self, call):
        kept = {}
        call.read_again = kept.__getitem__
        arrived = []

        def admit(u, reply):
            call.admit(u, reply)
            arrived.append(u)

        for u, reply in self.local(OpenCall(call.request, call.most, admit, arrived)):
            kept[u] = reply
            yield u, reply


@dataclass
class Silent:
    """A helper that stops answering at one kind of request."""

    helper: AssistedHelper
    kinds: tuple

    def handle(self, request):
        if isinstance(request, self.kinds):
            raise ProtocolError("this helper is gone")
        return self.helper.handle(request)


@dataclass
class Liar:
    """A helper that alters what it reveals."""

    helper: AssistedHelper
    alter: object

    def handle(self, request):
        reply = self.helper.handle(request)
        return self.alter(reply) if isinstance(request, Reveal) else reply


def lie_about_all(reply: Revealed) -> Revealed:
    """Add one to the first mask of every whole, and change every digest."""
    masks = bytearray(reply.masks)
    if masks:
        masks[0] ^= 1
    return Revealed({rank: bytes(32) for rank in reply.digests}, reply.pieces, bytes(masks))


@dataclass
class Accuser:
    """A helper that names clients although their boxes are right."""

    helper: AssistedHelper
    named: tuple

    def handle(self, request):
        reply = self.helper.handle(request)
        if isinstance(reply, BoxesOpened):
            known = [u for u in sorted(self.named) if u in request.entries]
            return BoxesOpened(pack_words(known))
        return reply


class Served:
    """A round in which all boxes are there, as the server has them."""

    def __init__(self, **settings):
        self.round = Round(**settings)
        self.parameters, self.helpers = self.round.parameters, self.round.helpers
        request = SendContribution(self.parameters)
        self.sent = {int(u): client.handle(request) for u, client in self.round.clients.items()}

    def entries(self, h=1, clients=None):
        present = self.parameters.present
        place, found = present.index(h), {}
        for u in clients or self.sent:
            one, size = self.sent[u], len(self.sent[u].boxes) // len(present)
            found[u] = Entry(one.header, one.signature, one.boxes[size * place : size * (place + 1)])
        return found

    def open(self, h=1, entries=None):
        return self.helpers[h].handle(OpenBoxes(self.parameters, self.entries(h) if entries is None else entries))

    def open_all(self):
        for h in self.parameters.present:
            assert not self.open(h).named
        return self

    def agree(self, h=1, u3=None):
        return self.helpers[h].handle(AgreeOnSurvivors(ROUND, pack_words(u3 or self.sent))).signature

    def reveal(self, h=1, u3=None, signatures=None, sets=None):
        given = {int(k): self.agree(k, u3) for k in self.helpers} if signatures is None else signatures
        asked = {self.parameters.ranks[h][0]: True} if sets is None else sets
        return self.helpers[h].handle(Reveal(ROUND, pack_words(u3 or self.sent), given, asked))
