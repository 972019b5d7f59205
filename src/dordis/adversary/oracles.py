"""Questions about a client's data that a server asks by the model or the sum that it sends: does this one fail on it?

In each the server compares what it sees of two clients whose data differ.  It has gained if that is not the same.
"""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from dordis.adversary import names
from dordis.adversary.attack import Attack
from dordis.adversary.participants import (
    COMPLETE,
    DIM,
    IDS,
    NO_MODEL,
    Holder,
    forged,
    honest_client,
    invitation,
)
from dordis.adversary.session import Session, foiled_unless
from dordis.kernels.packing import pack
from dordis.network.training import TimedTraining
from dordis.privacy.skellam import Floats
from dordis.protocol import MemoryJournal, Message
from dordis.protocols.delivery import Dispatch, Store
from dordis.protocols.distributed_dp import Aggregate
from dordis.protocols.limits import LARGEST_WEIGHT
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.rounds.app import AppForm, RoundInfo
from dordis.rounds.invitation import SendModel, Train
from dordis.rounds.model import ModelBytes, Numbers

SMALL, LARGE = 0.4, 0.6
"""The one sample of either client."""
ASKING = ModelBytes.of([88.7 / 0.5])
"""A model on which training overflows 32-bit numbers exactly if the sample is above 0.5: exp(88.7) is the largest."""
NOT_FINITE, TOO_LARGE = ModelBytes.of([np.inf]), ModelBytes.of([2.0 * LARGEST_WEIGHT])
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
    begin, finished = threading.Event(), threading.Event()

    def wait(seconds: float) -> None:
        begin.set()
        finished.wait()
        now[0] = max(now[0], seconds)

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
        "Training overflows exactly if some sample is above a bound: whoever declines has one.",
        lambda session: ask(session, by_training),
        checks=(names.CONTAIN,),
    ),
    on_complete(
        "a sum on which the application fails for some data",
        "The application of the victim fails on the sum that the server delivers, exactly if its data are such.",
        lambda session: ask(session, by_sum, NO_MODEL),
        checks=(names.CONTAIN,),
    ),
    on_complete(
        "a model on which training takes longer for some data",
        "The server looks at when the victim is ready, which depends on its data.",
        time_training,
        checks=(names.WAIT_OUT,),
    ),
    on_complete(
        "a model that is not finite",
        "The victim is to train from infinities, which are left or vanish as its data are.",
        lambda session: train_from(session, NOT_FINITE),
        checks=(names.INVITATION + "check_trainable",),
    ),
    on_complete(
        "a model of huge numbers",
        "The victim is to train from numbers with which ordinary data overflow.",
        lambda session: train_from(session, TOO_LARGE),
        checks=(names.INVITATION + "check_trainable",),
    ),
    on_complete(
        "a model of another length",
        "The victim is to train from a model that its application does not have.",
        lambda session: train_from(session, ModelBytes.of([1.0, 2.0]), FORM),
        checks=(names.INVITATION + "check_form",),
    ),
    on_complete(
        "a model of other numbers",
        "The victim is to train from numbers of another type than its application's.",
        lambda session: train_from(session, ModelBytes.of([1.0], "<f2"), FORM),
        checks=(names.INVITATION + "check_form",),
    ),
)
