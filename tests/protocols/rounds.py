"""Whole rounds for tests: parameters from a plan, scripted dropouts, and the output expected from plaintext sums."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dordis.crypto import signature
from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import DordisError
from dordis.pipeline import executor as drive
from dordis.privacy.encoding import chunk_ends
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.protocols import cohort, plaintext
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput, NoisyInput, PrivateServer
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.simulation.exchange import LocalExchange

ROTATION = bytes(range(32))
Loss = tuple[int, str, int]
"""A client, the name of a request, and a chunk (-1 in the set-up)."""


@dataclass
class Round:
    """A round to run, with what is lost on the way."""

    parameters: Parameters
    inputs: dict[int, np.ndarray]
    lost_requests: Iterable[Loss] = ()
    lost_replies: Iterable[Loss] = ()
    clients: dict[int, SecAggClient] = field(default_factory=dict)
    suite: Suite = DEFAULT

    def __post_init__(self):
        for u, x in self.inputs.items():
            self.clients.setdefault(u, make_client(self.parameters, u, x))
        losses = _listed(self.lost_requests), _listed(self.lost_replies)
        self.exchange = LocalExchange(self.clients, *losses, ahead=True)
        server = SecAggServer(self.parameters, registry(self.parameters), suite=self.suite)
        self.server = PrivateServer(server, self.parameters)

    def run(self) -> tuple[ChunkOutput, ...]:
        return drive.run(self.server, self.exchange)

    def outcome(self) -> tuple[ChunkOutput, ...] | DordisError:
        try:
            return self.run()
        except DordisError as error:
            return error

    def expected(self, outputs: tuple[ChunkOutput, ...]) -> tuple[np.ndarray, ...]:
        """Return the sums of the plaintext protocol on the same inputs, seeds, survivors, and noise that stayed."""
        clients = {u: plaintext.PlaintextClient(u, NoisyInput(x), self.seeds(u)) for u, x in self.inputs.items()}
        gone = {
            (u, "Contribute", chunk)
            for chunk, output in enumerate(outputs)
            for u in self.inputs
            if u not in output.survivors
        }
        kept = {chunk: output.stayed for chunk, output in enumerate(outputs)}
        server = PrivateServer(plaintext.PlaintextServer(self.parameters, withheld=kept), self.parameters)
        return tuple(output.total for output in drive.run(server, LocalExchange(clients, _listed(gone))))

    def seeds(self, u):
        """Return the noise seeds that a client drew, to give them to its plaintext double."""
        secrets = self.clients[u].state.secrets
        return {chunk: own.issued for chunk, own in secrets.items()}


def make_client(parameters: Parameters, u: int, x: np.ndarray, **options) -> SecAggClient:
    """Make a client with what the mode of the round needs."""
    if parameters.is_malicious:
        options = {"signing": signing_key(u), "registry": registry(parameters)} | options
    return SecAggClient(u, NoisyInput(x), **options)


@cache
def signing_key(u: int) -> bytes:
    return hashlib.sha256(b"a signing key for tests of client %d" % u).digest()


@cache
def public_key(u: int) -> bytes:
    return signature.public_key(signing_key(u))


def registry(parameters: Parameters) -> dict[int, bytes]:
    return {u: public_key(u) for u in parameters.clients} if parameters.is_malicious else {}


def random_inputs(parameters: Parameters, seed: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {u: rng.integers(0, 2**parameters.bits, parameters.dim, dtype=np.uint32) for u in parameters.clients}


def _listed(losses):
    losses = frozenset(losses)
    return lambda u, message: (u, type(message).__name__, getattr(message, "chunk", -1)) in losses


def agree_on_plan(plan, *, chunks=1, further=(), rotation=ROTATION, **options):
    """Write down a round that keeps to a plan, with the options of `cohort.agree_on`."""
    setting = plan.setting
    ends = chunk_ends(setting.summed_dim, setting.block, chunks)
    variances = [plan.variance] * chunks
    for planned in further:
        ends, variances = [*ends, ends[-1] + planned.release.length], [*variances, planned.variance]
    settings = {
        "run": bytes(32),
        "index": 3,
        "clients": range(1, setting.clients + 1),
        "threshold": setting.t,
        "quorum": setting.t,
        "tolerance": setting.T,
        "colluders": setting.colluders,
        "bits": plan.bits,
        "ends": ends,
        "scheme": setting.scheme,
        "variances": variances,
        "fraction": plan.noise.fraction,
        "reserve": plan.noise.reserve,
        "encoding": encoding_of(DSkellam.from_plan(plan), rotation, [planned.release for planned in further]),
    }
    return cohort.agree_on(**settings | options)
