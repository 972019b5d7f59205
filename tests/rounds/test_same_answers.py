"""What a client says does not depend on its data: the same bytes up to Ready, then the same kinds and lengths."""

import asyncio
import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis import wire
from dordis.apps.learning.app import Client as LearningClient
from dordis.apps.learning.models import Softmax
from dordis.apps.learning.settings import Settings
from dordis.errors import InputError, RoundFailed
from dordis.protocols.parameters import MALICIOUS
from dordis.protocols.secagg import SECAGG
from dordis.rounds.app import AppClient
from dordis.rounds.model import DTYPES, ModelBytes
from dordis.rounds.user_code import ZeroOnFailure
from tests.protocols.rounds import public_key, signing_key
from tests.rounds.parties import DIM, Federation, Member, agreed, invite_to

ME, CLIENTS = 1, (1, 2, 3, 4)
FEATURES, CLASSES = 9, 3
assert (FEATURES + 1) * CLASSES == DIM

numbers = st.floats(-10, 10, width=32)
weights = st.one_of(numbers, st.floats(-(2.0**33), 2.0**33, width=32), st.just(np.nan), st.just(np.inf))
samples = st.lists(st.tuples(st.lists(numbers, min_size=FEATURES, max_size=FEATURES), st.integers(0, 2)), max_size=4)
failures = st.sampled_from(
    [
        "raise",
        "input",
        "memory",
        "exit",
        "cancel",
        "panic",
        "silent",
        "nan",
        "shape",
        "object",
        "integers",
        "doubles",
        "none",
    ]
)


class Panic(BaseException):
    """What extensions in Rust raise: no Exception."""


class Unnamed(type):
    """A class whose errors cannot be described."""

    def __getattribute__(cls, name):
        if name == "__qualname__":
            raise ValueError(name)
        return super().__getattribute__(name)


class Silent(Exception, metaclass=Unnamed):
    """An error that fails when it is described."""


class Own(AppClient):
    """An application of somebody's own that fails in one way or another, exactly if a number of its data is above 0."""

    def __init__(self, number, preparing, using):
        self.fails, self.preparing, self.using = number > 0, preparing, using
        self.update = np.full(DIM, number, np.float32)

    def prepare_data(self, round, model):
        return self.fail(self.preparing) if self.fails else self.update

    def use_output(self, round, aggregate):
        if self.fails:
            self.fail(self.using)

    def fail(self, how):
        """Raise, or return what is no update or one of other numbers."""
        match how:
            case "raise":
                raise ZeroDivisionError("my data are such")
            case "input":
                raise InputError("my data are such")
            case "memory":
                raise MemoryError
            case "exit":
                raise SystemExit(1)
            case "cancel":
                raise asyncio.CancelledError
            case "panic":
                raise Panic("my data are such")
            case "silent":
                raise Silent
        results = {"nan": np.full(DIM, np.nan), "shape": np.zeros(DIM + 1), "object": object(), "none": None}
        numbers = {"integers": np.ones(DIM, np.int64), "doubles": np.full(DIM, 1e300)}
        return (results | numbers)[how]


def learning(data):
    """Return a client of the application that learns, with these samples."""
    x = np.array([row for row, _ in data], np.float64).reshape(-1, FEATURES)
    y = np.array([label for _, label in data], np.int64)
    return LearningClient(Softmax(FEATURES, CLASSES), (x, y), CLASSES, Settings(epochs=3, lr=4.0), (0, ME))


def entropy(name):
    """Return randomness that follows from a name."""
    count = itertools.count()
    return lambda size: hashlib.shake_256(b"%b/%d" % (name, next(count))).digest(size)


def transcript(app, model, dtype):
    """Return what the server sees of a client in two rounds from a model: kinds of requests, and answers as bytes."""
    registry = {u: public_key(u) for u in CLIENTS}
    members = {}
    for u in CLIENTS:
        keys = {"signing": signing_key(u), "registry": registry, "entropy": entropy(b"%d" % u)}
        members[u] = Member(u, SECAGG, user_code=ZeroOnFailure(lambda message: None), **keys)
    members[ME].client.app = app
    seen = []

    def tap(exchange):
        def deliver(requests):
            kinds = {u: type(request).__name__ for u, request in requests.items()}
            answered = False
            for u, reply in exchange(requests):
                if u == ME:
                    answered = True
                    seen.append((kinds[u], wire.encode(reply), bytes(wire.bulk_of(reply))))
                yield u, reply
            if ME in requests and not answered:
                seen.append((kinds[ME], b"", b""))

        return deliver

    home = Federation(members, SECAGG, registry=registry, tap=tap)
    start = ModelBytes.from_numbers(model, dtype)
    for index in (3, 4):
        parameters = agreed(CLIENTS, index=index, mode=MALICIOUS, model=start.digest)
        try:
            gathered = home.gather(invite_to(parameters, start), start)
            if len(gathered.ready) == len(CLIENTS):
                home.sum(parameters)
        except RoundFailed as error:
            seen.append((type(error).__name__, b"", b""))
    errors = [type(error).__name__ for u, error in home.exchange.errors if u == ME]
    return seen, errors


def check_same(apps, model, dtype):
    """Two clients whose data differ are alike to the server."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        (one, errors), (other, others) = (transcript(app, model, dtype) for app in apps)
    assert errors == others
    begun = [kind for kind, _, _ in one].index("Train") + 1 if "Train" in [kind for kind, _, _ in one] else len(one)
    assert one[:begun] == other[:begun]
    shapes = [[(kind, len(frame), len(bulk)) for kind, frame, bulk in seen] for seen in (one, other)]
    assert shapes[0] == shapes[1]
    return [kind for kind, _, _ in one]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.tuples(samples, samples), st.lists(weights, min_size=DIM, max_size=DIM), st.sampled_from(DTYPES))
def test_two_clients_that_learn_from_different_data_say_the_same(data, model, dtype):
    check_same([learning(one) for one in data], model, dtype)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=8), st.sampled_from(DTYPES), failures, failures)
def test_two_clients_of_an_application_that_fails_on_some_data_say_the_same(model, dtype, preparing, using):
    kinds = check_same([Own(number, preparing, using) for number in (-0.5, 0.5)], model, dtype)
    assert kinds.count("Store") == 2  # both rounds went through


def test_a_model_that_overflows_for_one_of_two_clients_is_answered_alike():
    model = np.zeros(DIM)
    model[0] = 2.0**31
    far, near = [([9.0] + [0.0] * 8, 0)], [([0.0] * 9, 1)]
    kinds = check_same([learning(far), learning(near)], model, "<f4")
    assert kinds.count("CollectInput") == 2


def test_without_containment_the_server_sees_the_difference(monkeypatch):
    monkeypatch.setattr("dordis.rounds.user_code.contain", lambda what, work, tell_owner: work())
    seen = []
    for number in (-0.5, 0.5):
        try:
            seen.append(transcript(Own(number, "nan", "none"), [1.0], "<f4"))
        except InputError as error:
            seen.append(type(error).__name__)
    assert seen[0] != seen[1]
