"""A small federation for tests: an application and an owner that keep a diary, a model, and rounds to be invited to."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from dordis.errors import ParametersRefused
from dordis.kernels.ring import pack
from dordis.pipeline.executor import serialise_exchange
from dordis.privacy.encoding import Grid, chunk_ends
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.scaling import sensitivity
from dordis.privacy.setting import default_threshold
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import Message
from dordis.protocols.cohort import agree_on
from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.parameters import Parameters
from dordis.protocols.plaintext import PLAINTEXT, Begin, Contribute, Disclose
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppClient
from dordis.rounds.client import Client
from dordis.rounds.engine import AgreedRound, RoundEngine
from dordis.rounds.invitation import Invitation, Invite, SendModel, Terms, Train
from dordis.rounds.model import ModelBytes
from dordis.simulation.exchange import LocalExchange
from tests.protocols.rounds import public_key, signing_key

IDS = (1, 2, 3, 4, 5, 6, 7)
DIM, BLOCK, SCALE, VARIANCE = 30, 8, 64.0, 50
RUN, ROTATION = bytes(range(32)), bytes(range(32, 64))
MODEL = ModelBytes.from_numbers(np.arange(40.0) / 7)
PIECE = 64


def agreed(clients: Collection[int] = IDS, index: int = 0, chunks: int = 1, **options: Any) -> Parameters:
    """Agree on a round of updates in blocks of eight, from the model above, with a further release `bit` if given."""
    mechanism, bit = options.pop("mechanism", None) or skellam(options.pop("bits", 20)), options.pop("bit", None)
    ends, t = chunk_ends(DIM, BLOCK, chunks), default_threshold(len(clients), 1)
    usual = {"run": RUN, "threshold": t, "tolerance": len(clients) - t, "model": MODEL.digest}
    if Scheme.SINGLE in mechanism.schemes:
        extra = [] if bit is None else [bit.variance]
        usual |= {"scheme": Scheme.SINGLE, "variances": [VARIANCE] * chunks + extra}
    return agree_on(
        index=index,
        clients=clients,
        bits=mechanism.grid.bits,
        ends=ends if bit is None else [*ends, ends[-1] + bit.release.length],
        encoding=encoding_of(mechanism, ROTATION, () if bit is None else [bit.release]),
        **usual | options,
    )


def skellam(bits: int = 20) -> DSkellam:
    """Return the mechanism of these rounds."""
    grid = Grid(DIM, BLOCK, SCALE, bits)
    return DSkellam(grid, 1.0, sensitivity(SCALE, 1.0, grid.padded).squared)


def invite_to(parameters: Parameters, start: ModelBytes = MODEL, /, **changes: Any) -> Invite:
    """Invite to a round, on the terms that its parameters keep."""
    invite = Invite(
        round=parameters.round,
        number=5,
        protocol="plaintext",
        registry=b"",
        dim=DIM,
        terms=Terms.from_parameters(parameters),
        model=start.digest,
        model_bytes=len(start.data),
        dtype=start.dtype,
    )
    return msgspec.structs.replace(invite, **changes)


def pieces(model: ModelBytes = MODEL) -> list[SendModel]:
    """Cut a model into small pieces."""
    return [SendModel(start, model.data[start : start + PIECE]) for start in range(0, len(model.data), PIECE)]


def sums(parameters: Parameters) -> list[Message]:
    """Return the end of a round whose sums are zero: what was summed is not the client's to verify."""
    requests: list[Message] = []
    for chunk, span in enumerate(parameters.chunks):
        zeros = pack(np.zeros(span.stop - span.start, np.uint32), parameters.bits).tobytes()
        requests += [Dispatch(chunk, len(parameters.clients), zeros), Store(chunk)]
    return requests


def course(parameters: Parameters) -> list[Message]:
    """Return all requests of a plaintext round in which everybody stays."""
    everyone, chunks = parameters.pack(parameters.clients), range(len(parameters.chunks))
    summing = [request for k in chunks for request in (Contribute(k), Disclose(k, everyone))]
    before = [invite_to(parameters), *pieces(), Train(), Begin(parameters)]
    return [*before, *summing, *sums(parameters)]


def until(requests: Sequence[Message], kind: type[Message]) -> list[Message]:
    """Return the requests that come before the first of a kind."""
    return list(requests[: [type(request) for request in requests].index(kind)])


class Diarist(AppClient):
    """An application that writes down when it is called, with what."""

    def __init__(self, update: Any, diary: list[str]) -> None:
        self.update, self.diary = update, diary
        self.told: list[tuple[Any, ...]] = []
        self.following: np.ndarray | None = None
        self.ready = True
        self.raises: dict[str, BaseException] = {}

    def is_ready(self, round):
        self.fail("is_ready")
        return self.ready

    def fail(self, method: str) -> None:
        """Raise what this method is to raise, if anything."""
        if method in self.raises:
            raise self.raises[method]

    def prepare_data(self, round, model):
        self.diary.append("prepare_data")
        self.fail("prepare_data")
        self.told.append((round, model))
        return self.update

    def use_output(self, round, aggregate):
        self.diary.append("use_output")
        self.fail("use_output")
        self.told.append((round, aggregate))

    def next_model(self, round, model, aggregate):
        self.fail("next_model")
        return self.following


@dataclass
class Witness:
    """An owner that writes down what it is asked, and refuses what it is told to."""

    diary: list[str]
    refuses: str = ""
    selected: bool = True
    machines: list[bytes] = field(default_factory=list)

    def accept(self, invite):
        self._asked("accept")
        return b"" if self.selected else None

    def take_piece(self, count):
        if self.refuses == "take_piece":
            raise ParametersRefused("this owner refuses to take_piece")

    def train(self, invite):
        self._asked("train")

    def consent(self, parameters, proofs):
        self._asked("consent")

    def attend(self, parameters, machine):
        self._asked("attend")
        self.machines.append(machine)

    def conclude(self, parameters, survivors):
        self.survivors = survivors

    def _asked(self, what):
        self.diary.append(what)
        if self.refuses == what:
            raise ParametersRefused(f"this owner refuses to {what}")


class Member:
    """A client with its application, its owner, and what they wrote down."""

    def __init__(self, u: int = 1, protocol: SummingProtocol = PLAINTEXT, update: Any = None, **options: Any) -> None:
        self.diary: list[str] = []
        self.app = Diarist(np.full(DIM, u / 100, np.float32) if update is None else update, self.diary)
        self.owner = options.pop("owner", None) or Witness(self.diary)
        self.client = Client(u, self.app, self.owner, protocol, **options)

    def handle(self, *requests: Message) -> list[Message]:
        """Answer requests, one after the other."""
        return [self.client.handle(request) for request in requests]


class Federation:
    """Members by id, an exchange in memory, and the engine on top; whatever `lost` tells of never arrives."""

    def __init__(self, members: dict[int, Member], protocol: SummingProtocol, lost: Any = None, **options: Any) -> None:
        self.members, self.protocol = members, protocol
        clients = {u: member.client for u, member in members.items()}
        self.exchange = LocalExchange(clients, *([] if lost is None else [lost]))
        registry = options.pop("registry", {u: public_key(u) for u in members})
        tap = options.pop("tap", lambda exchange: exchange)
        self.engine = RoundEngine(
            serialise_exchange(tap(self.exchange)),
            protocol,
            registry,
            lambda index: [*members],
            meter=self.exchange,
            **options,
        )

    @classmethod
    def of(cls, protocol: SummingProtocol, clients: Collection[int] = IDS, lost: Any = None, **options: Any):
        """Make one of members who trust the server."""
        registry = {u: public_key(u) for u in clients}
        keys = {u: {"signing": signing_key(u), "registry": registry} for u in clients}
        return cls({u: Member(u, protocol, **keys[u]) for u in clients}, protocol, lost, **options)

    def gather(self, invite: Invite, model: ModelBytes = MODEL):
        """Invite all members, to the protocol that they speak."""
        spoken = msgspec.structs.replace(invite, protocol=self.protocol.name)
        return self.engine.gather(Invitation(spoken, model, tuple(self.members)))

    def sum(self, parameters: Parameters, **options: Any):
        """Sum, with the mechanism that the parameters name unless another is given."""
        mechanism = options.pop("mechanism", None) or DistributedDP.from_parameters(parameters, DIM).mechanism
        return self.engine.sum(AgreedRound(parameters, mechanism, **options))
