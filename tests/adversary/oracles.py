"""The server chooses a model or a sum so that a client's answer, or the time of the answer, depends on its data.

Each attack compares two clients with different data; it succeeds if the server can tell them apart by their answers.
"""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from dordis.kernels.ring import pack
from dordis.privacy.scaling import Floats
from dordis.protocol import MemoryJournal, Message
from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.encoded_sums import Aggregate
from dordis.protocols.limits import LARGEST_WEIGHT
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.rounds.app import AppForm, RoundInfo
from dordis.rounds.invitation import SendModel, Train
from dordis.rounds.model import ModelBytes, Numbers
from dordis.rounds.user_code import TimedTraining
from tests.adversary import names
from tests.adversary.attack import Attack
from tests.adversary.participants import (
    COMPLETE,
    DIM,
    IDS,
    NO_MODEL,
    Holder,
    forged,
    honest_client,
    invitation,
)
from tests.adversary.session import Session, foiled_unless

SMALL, LARGE = 0.4, 0.6
"""The one sample of either client."""
ASKING = ModelBytes.from_numbers([88.7 / 0.5])
"""A model on which training overflows 32-bit numbers exactly if the sample is above 0.5: exp(88.7) is the largest."""
NOT_FINITE, TOO_LARGE = ModelBytes.from_numbers([np.inf]), ModelBytes.from_numbers([2.0 * LARGEST_WEIGHT])
FORM = AppForm("<f4", frozenset({1}), frozenset({DIM}))


class Learner(Holder):
    """An application that trains on one sample, and looks at the sum with it."""

    def __init__(self, sample: float) -> None:
        super().__init__(np.zeros(DIM))
        self.sample = sample

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return an update that is not finite where the exponential is not."""
        super().prepare_data(round, model)
        with np.errstate(over="ignore"):
            return np.full(DIM, np.exp(float(model[0]) * self.sample)) if model.size else self.update

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Fail if the sum is below the sample."""
        if aggregate.mean[0] < self.sample:
            raise ArithmeticError("the sum does not suit my data")


def answers(session: Session, sample: float, requests: list[Message], model: ModelBytes) -> list[str]:
    """Return what the server sees of a client that has this sample: its answers, or how it declines."""
    seen: list[str] = []
    client = honest_client(session.victim, Learner(sample), lambda round: MemoryJournal())
    session.deliver(client, invitation(session.parameters, model))
    for request in requests:
        try:
            seen.append(type(session.deliver(client, request)).__name__)
        except Exception as error:  # noqa: BLE001  whatever it is: the server sees that there was one
            return [*seen, type(error).__name__]
    return seen


def ask(session: Session, requests: Callable[[Session], list[Message]], model: ModelBytes = ASKING) -> str:
    """Compare what two clients answer."""
    parameters = forged(session.parameters, model=model.digest)
    seen = [answers(session.another(model=parameters.model), s, requests(session), model) for s in (SMALL, LARGE)]
    foiled_unless(seen[0] != seen[1], "contain", "both answer alike")
    return f"the sample of one client is above 0.5: {seen[1][-1]}"


def by_training(session: Session) -> list[Message]:
    """Have the client train."""
    return [SendModel(0, ASKING.data), Train()]


def by_sum(session: Session) -> list[Message]:
    """Have the client use a sum of the server's own."""
    total = pack(np.full(DIM, len(IDS) // 2, np.uint32), session.parameters.bits).tobytes()
    parameters = forged(session.parameters, model=NO_MODEL.digest)
    return [Train(), AdvertiseKeys(parameters), Dispatch(0, len(IDS), total), Store(0)]


def ready_at(session: Session, sample: float) -> float:
    """Return when a client with this sample is ready, on a clock of its own.

    Its training takes as many seconds as the sample says; the clock stands still but for training and waiting.
    """
    now = [0.0]
    invited, begin, finished = threading.Event(), threading.Event(), threading.Event()

    def wait(seconds: float) -> None:
        until = now[0] + seconds
        if invited.is_set():  # the wait for training, not the one before the answer to the invitation
            begin.set()
            finished.wait()
        now[0] = max(now[0], until)

    class Slow(Holder):
        def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
            begin.wait()
            now[0] += sample
            finished.set()
            return self.update

    code = TimedTraining(1.0, lambda message: None, wait, lambda: now[0])
    app = Slow(np.zeros(DIM))
    client = honest_client(session.victim, app, lambda round: MemoryJournal(), user_code=code)
    session.deliver(client, invitation(session.parameters))
    invited.set()
    session.deliver(client, Train())
    return now[0]


def time_training(session: Session) -> str:
    """Compare when two clients are ready."""
    times = [ready_at(session, sample) for sample in (SMALL, LARGE)]
    foiled_unless(times[0] != times[1], "wait_out", "both are ready when the agreed time is over")
    return f"training takes longer on the data of one client: {times[1]} seconds"


def train_from(session: Session, model: ModelBytes, form: AppForm | None = None) -> str:
    """Have a client train from a model that it must refuse."""
    client = honest_client(session.victim, Learner(SMALL), lambda round: MemoryJournal(), form=form)
    session.deliver(client, invitation(forged(session.parameters, model=model.digest), model))
    session.deliver(client, SendModel(0, model.data))
    session.deliver(client, Train())
    return "the victim trained from a model that only serves to ask about its data"


on_complete = partial(Attack, graphs=(COMPLETE,))

ATTACKS = (
    on_complete(
        "a model on which training fails for some data",
        "Training overflows exactly if a sample is above a bound: a client that then declines reveals that it has one.",
        lambda session: ask(session, by_training),
        refused_by="contain",
        stage="Train",
        checks=(names.CONTAIN,),
    ),
    on_complete(
        "a sum on which the application fails for some data",
        "The victim's application fails on the delivered sum exactly if its data have a certain property.",
        lambda session: ask(session, by_sum, NO_MODEL),
        refused_by="contain",
        stage="Store",
        checks=(names.CONTAIN,),
    ),
    on_complete(
        "a model on which training takes longer for some data",
        "The server measures when the victim is ready; the time of training depends on its data.",
        time_training,
        refused_by="wait_out",
        stage="Train",
        checks=(names.WAIT_OUT,),
    ),
    on_complete(
        "a model that is not finite",
        "The victim would train from infinities, which persist or vanish depending on its data.",
        lambda session: train_from(session, NOT_FINITE),
        refused_by="check_trainable (ParametersRefused)",
        stage="Train",
        checks=(names.MISSED + "check_trainable",),
    ),
    on_complete(
        "a model of huge numbers",
        "The victim would train from weights so large that ordinary data overflow.",
        lambda session: train_from(session, TOO_LARGE),
        refused_by="check_trainable (ParametersRefused)",
        stage="Train",
        checks=(names.MISSED + "check_trainable",),
    ),
    on_complete(
        "a model of another length",
        "The victim would train from a model of a length that its application does not have.",
        lambda session: train_from(session, ModelBytes.from_numbers([1.0, 2.0]), FORM),
        refused_by="check_form (ParametersRefused)",
        stage="Invite",
        checks=(names.INVITATION + "check_form",),
    ),
    on_complete(
        "a model of another number type",
        "The victim would train from weights of another type than its application's.",
        lambda session: train_from(session, ModelBytes.from_numbers([1.0], "<f2"), FORM),
        refused_by="check_form (ParametersRefused)",
        stage="Invite",
        checks=(names.INVITATION + "check_form",),
    ),
)
