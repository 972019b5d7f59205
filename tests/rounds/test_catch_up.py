"""Sums that a client missed are replayed where they are shorter than the model, and lead to the very same bytes."""

import random

import msgspec
import numpy as np
import pytest

from dordis import wire
from dordis.apps.learning import Client as Learner
from dordis.errors import DordisError, MalformedMessage, ParametersRefused, ProtocolError, UnexpectedRequest
from dordis.owner.directory import ClientDirectory
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.scaling import sensitivity
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.delivery import Dispatch
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.limits import MOST_REPLAYS
from dordis.protocols.parameters import Parameters, extend
from dordis.protocols.plaintext import PLAINTEXT
from dordis.rounds.app import AppClient, Task
from dordis.rounds.catch_up import RecentSums, decode_missed_sum
from dordis.rounds.invitation import SendModel, SendSum, SumUsed, Train
from dordis.rounds.model import LastModel, ModelBytes
from tests.privacy.clipping_bits import planned_bit
from tests.rounds.parties import ROTATION, RUN, SCALE, Diarist, Federation, Member, invite_to
from tests.rounds.test_fuzz import mutated

IDS, LATE = (1, 2, 3, 4, 5), 5
LENGTH, BLOCK, BUCKETS = 300, 8, 32
MODEL = ModelBytes.from_numbers(np.linspace(-1, 1, 4 * LENGTH))
PLAIN = Grid(LENGTH, BLOCK, SCALE, 20)
FOLDED = Grid(LENGTH, BLOCK, SCALE, 20, BUCKETS)
BIT = planned_bit(4, 50)
LENGTHS = {"k, one chunk": (FOLDED, 1, None), "k, two chunks and the bit": (FOLDED, 2, BIT), "d": (PLAIN, 1, None)}


def skellam(grid):
    return DSkellam(grid, 1.0, sensitivity(SCALE, 1.0, grid.padded, folded=bool(grid.buckets)).squared)


def parameters_of(index, model, grid=FOLDED, chunks=1, bit=None):
    """Agree on a round of five clients, with signs and rotation of its own."""
    half = grid.blocks // chunks * BLOCK
    ends = [half * place for place in range(1, chunks)] + [grid.padded]
    rotation = index.to_bytes(2, "big") + ROTATION[2:]
    return agree_on(
        run=RUN, index=index, clients=IDS, threshold=3, tolerance=2, model=model.digest, bits=grid.bits,
        ends=ends if bit is None else [*ends, ends[-1] + 1], scheme=Scheme.SINGLE,
        variances=[50] * chunks + ([] if bit is None else [bit.variance]),
        encoding=encoding_of(skellam(grid), rotation, () if bit is None else [bit.release]),
    )  # fmt: skip


def stepped(model, mean):
    """Return the next model as application and server make it."""
    return np.asarray(model, np.float64) + np.resize(mean, model.size) / 3


class Stepper(Diarist):
    """An application that can follow the server."""

    def next_model(self, round, model, aggregate):
        self.diary.append(f"next_model {round.number} {round.index} {round.clip}")
        return stepped(model, aggregate.mean)


class Course(Federation):
    """A server that trains, round after round, with whoever is there."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.model, self.index, self.away, self.kind = MODEL, 0, set(), LENGTHS["k, one chunk"]
        for u, member in self.members.items():
            member.app = member.client.app = Stepper(np.full(LENGTH, u / 100), member.diary)

    @classmethod
    def of(cls, **options):
        made = super().of(PLAINTEXT, IDS, lambda u, request: u in made.away, registry={}, **options)
        return made

    def invited(self):
        """Invite everybody to the next round."""
        invite = invite_to(parameters_of(self.index, self.model, *self.kind), self.model, dim=LENGTH, number=self.index)
        return self.gather(invite, self.model)

    def round(self):
        """Run a round; return what gathering took."""
        gathered = self.invited()
        parameters = parameters_of(self.index, self.model, *self.kind)
        result = self.sum(parameters, mechanism=skellam(self.kind[0]), number=self.index)
        self.model = ModelBytes.from_numbers(stepped(self.model.array, result.aggregate.mean))
        self.index += 1
        return gathered

    def missed(self, count):
        """Run a round with all, then so many without the late one."""
        self.round()
        self.away = {LATE}
        for _ in range(count):
            self.round()
        self.away = set()

    def trained_from(self):
        """Return the models that clients were given last."""
        given = {u: [model for _, model in member.app.told] for u, member in self.members.items()}
        return {u: next(m for m in reversed(models) if isinstance(m, np.ndarray)) for u, models in given.items()}


@pytest.fixture
def course():
    written = []

    def tap(exchange):
        def deliver(requests):
            written.extend((u, request) for u, request in requests.items())
            return exchange(requests)

        return deliver

    made = Course.of(tap=tap)
    made.written = written
    return made


def sent(course, kind):
    return [(u, request) for u, request in course.written if isinstance(request, kind)]


@pytest.mark.parametrize("kind", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("missed", [1, 3])
def test_whoever_missed_rounds_has_the_exact_model_by_their_sums(course, missed, kind):
    course.kind = kind
    course.missed(missed)
    course.written.clear()
    gathered = course.invited()
    assert sorted(gathered.ready) == list(IDS)
    assert not course.exchange.errors
    assert [u for u, _ in sent(course, SendSum)] == [LATE] * missed
    assert not sent(course, SendModel)
    assert gathered.replay_bytes == sum(wire.size(request) for _, request in sent(course, SendSum)) < len(MODEL.data)
    assert gathered.model_bytes == 0
    for model in course.trained_from().values():
        assert model.tobytes() == course.model.data
    assert course.model.data != MODEL.data
    written = [line for line in course.members[LATE].diary if line.startswith("next_model")]
    assert written == [f"next_model {index + 1} {index} 1.0" for index in range(missed + 1)]


def test_whoever_missed_so_many_that_the_model_is_shorter_gets_the_model(course):
    course.missed(1)
    course.invited()
    most = (len(MODEL.data) - 1) // course.exchange.kinds["SendSum"]
    assert 3 < most < 12
    for missed, replayed in ((most, most), (most + 1, 0)):
        course.round()
        course.missed(missed)
        course.written.clear()
        gathered = course.invited()
        assert len(sent(course, SendSum)) == replayed
        assert bool(gathered.model_bytes) != bool(gathered.replay_bytes)
        assert course.trained_from()[LATE].tobytes() == course.model.data


def test_clients_that_missed_different_rounds_catch_up_together(course):
    course.missed(2)
    course.away = {4, LATE}
    course.round()
    course.away = set()
    course.written.clear()
    assert sorted(course.invited().ready) == list(IDS)
    asked = [u for u, _ in sent(course, SendSum)]
    assert (asked.count(4), asked.count(LATE), len(asked)) == (1, 3, 4)
    assert all(model.tobytes() == course.model.data for model in course.trained_from().values())


def test_sums_that_lead_elsewhere_are_noticed_and_the_model_is_sent(course):
    course.missed(2)
    late = course.members[LATE]
    late.app.next_model = lambda round, model, aggregate: stepped(model, aggregate.mean) + 1e-3
    course.written.clear()
    gathered = course.invited()
    assert len(sent(course, SendSum)) == 1  # what it holds then is not what the second sum starts from
    assert (gathered.replay_bytes > 0, gathered.model_bytes > len(MODEL.data)) == (True, True)
    assert course.trained_from()[LATE].tobytes() == course.model.data
    assert LATE in gathered.ready


def test_the_last_sum_may_be_the_one_that_leads_elsewhere(course):
    course.missed(1)
    course.members[LATE].app.next_model = lambda round, model, aggregate: None
    gathered = course.invited()
    assert (gathered.replay_bytes > 0, gathered.model_bytes > len(MODEL.data)) == (True, True)
    assert course.trained_from()[LATE].tobytes() == course.model.data


def test_whoever_is_lost_while_sums_are_replayed_is_not_in_the_round(course):
    course.missed(2)
    course.exchange._lost_request = lambda u, request: u == LATE and isinstance(request, SendSum)
    gathered = course.invited()
    assert sorted(gathered.ready) == [1, 2, 3, 4]
    assert gathered.model_bytes == 0


def test_a_client_that_was_restarted_in_between_gets_the_model(course):
    """What it had made of the first sums is gone; the model that it kept is the old one."""
    course.missed(3)
    late = course.members[LATE]
    models, seen = LastModel(), []
    models.keep(late.client.models.last())

    def restarted(u, request):
        if u == LATE and isinstance(request, SendSum):
            seen.append(request)
            if len(seen) == 2:
                invited = late.client.round
                late.client.models, late.client.round = models, None
                late.client.handle(invited.invite)
        return False

    course.exchange._lost_request = restarted
    gathered = course.invited()
    assert len(seen) == 2
    assert gathered.model_bytes > len(MODEL.data)
    assert course.trained_from()[LATE].tobytes() == course.model.data


# What a client does with what it is sent


def asked(model=MODEL, index=9, grid=FOLDED):
    """Return a client that has the first model and was invited to start from another, and two sums that it missed."""
    member = Member(LATE, update=np.zeros(LENGTH))
    member.app = member.client.app = Stepper(np.zeros(LENGTH), member.diary)
    member.client.models.keep(MODEL)
    target, requests = MODEL, []
    for past in (3, 4):
        parameters = parameters_of(past, target, grid)
        private = DistributedDP.from_parameters(parameters, LENGTH)
        data = private.encode_delivered(0, np.arange(grid.padded, dtype=np.uint32) * 1000)
        requests.append(SendSum(past, extend(parameters, Parameters), {0: 4}, data))
        target = ModelBytes.from_numbers(stepped(target.array, decode_missed_sum(requests[-1], LENGTH, None).mean))
    present = target if model is MODEL else model
    parameters = parameters_of(index, present)
    (accepted,) = member.handle(invite_to(parameters, present, dim=LENGTH))
    assert accepted.holds == MODEL.digest
    return member, requests, target


def test_a_sum_that_is_sent_again_is_answered_alike():
    member, (first, second), target = asked()
    assert member.handle(first, first) == [SumUsed(second.parameters.model)] * 2
    assert member.handle(second, second, first) == [SumUsed(target.digest)] * 3
    assert len([line for line in member.diary if line.startswith("next_model")]) == 2
    member.handle(*[SendModel(0, target.data)], Train())
    assert member.client.models.last().data == target.data


def test_a_client_says_which_model_it_holds_only_if_it_can_follow():
    member = Member(LATE, update=np.zeros(LENGTH))
    invite = invite_to(parameters_of(9, MODEL), ModelBytes.from_numbers([1.0]), dim=LENGTH)
    assert member.handle(invite)[0].holds is msgspec.UNSET  # it has none
    member.client.models.keep(MODEL)
    assert member.handle(msgspec.structs.replace(invite, round=RUN + (10).to_bytes(8, "big")))[0].holds == MODEL.digest
    other = msgspec.structs.replace(invite, round=RUN + (11).to_bytes(8, "big"), dtype="<f8")
    assert member.handle(other)[0].holds is msgspec.UNSET
    type_without = type("Deaf", (Diarist,), {"next_model": AppClient.next_model})
    member.client.app = type_without(np.zeros(LENGTH), [])
    last = msgspec.structs.replace(invite, round=RUN + (12).to_bytes(8, "big"))
    assert member.handle(last)[0].holds is msgspec.UNSET


@pytest.mark.parametrize(
    ("optimiser", "follows"),
    [
        ({"kind": "fedavg"}, True),
        ({"kind": "fedavg", "momentum": 0.9}, False),
        ({"kind": "fedadam"}, False),
    ],
)
def test_learning_is_not_replayed_where_the_server_remembers_earlier_rounds(optimiser, follows):
    options = {"model": "softmax", "optimiser": optimiser, "average": 0.8}
    assert Learner.from_task(Task(options, population=100), 0).follows == follows


def changed(**fields):
    return lambda request: msgspec.structs.replace(request, **fields)


def with_parameters(**fields):
    return lambda request: changed(parameters=msgspec.structs.replace(request.parameters, **fields))(request)


HOSTILE = {
    "of another run": (with_parameters(round=bytes(40)), UnexpectedRequest),
    "of this round": (with_parameters(round=RUN + (9).to_bytes(8, "big")), UnexpectedRequest),
    "of a later round": (with_parameters(round=RUN + (10).to_bytes(8, "big")), UnexpectedRequest),
    "of a round without an id": (with_parameters(round=b""), UnexpectedRequest),
    "as long as the model": (changed(vector=bytes(len(MODEL.data))), UnexpectedRequest),
    "too long": (lambda request: changed(vector=request.vector + b"\0")(request), ProtocolError),
    "too short": (lambda request: changed(vector=request.vector[:-1])(request), ProtocolError),
    "of no chunk": (changed(survivors={}), ProtocolError),
    "of too many chunks": (changed(survivors={0: 4, 1: 4}), ProtocolError),
    "over nobody": (changed(survivors={0: 0}), ProtocolError),
    "over too many": (changed(survivors={0: 1 << 15}), ProtocolError),
    "of another length": (with_parameters(ends=(64).to_bytes(8, "little")), ParametersRefused),
    "in a ring of no bits": (with_parameters(bits=0), ParametersRefused),
    "of no scheme": (with_parameters(scheme="the server's own"), ParametersRefused),
    "with long hashes": (with_parameters(beacon=bytes(1000)), ParametersRefused),
}


@pytest.mark.parametrize(("alter", "error"), HOSTILE.values(), ids=HOSTILE)
def test_sums_that_cannot_be_are_refused_and_the_client_leaves(alter, error):
    member, (first, _), _ = asked()
    with pytest.raises(error):
        member.handle(alter(first))
    with pytest.raises(DordisError):
        member.handle(Train())
    assert not [line for line in member.diary if line.startswith("next_model")]


def test_whoever_did_not_ask_for_sums_uses_none():
    member = Member(LATE, update=np.zeros(LENGTH))
    _, (first, _), _ = asked()
    member.handle(invite_to(parameters_of(9, MODEL), MODEL, dim=LENGTH))
    assert member.handle(first) == [SumUsed(b"")]
    assert member.diary == ["accept"]


def test_more_sums_than_the_ceiling_are_refused():
    member, (first, _), _ = asked(ModelBytes.from_numbers(np.ones(1000 * LENGTH)))
    held = MODEL
    for _ in range(MOST_REPLAYS):
        (reply,) = member.handle(with_parameters(model=held.digest)(first))
        held = ModelBytes.from_numbers(stepped(held.array, decode_missed_sum(first, LENGTH, None).mean))
        assert reply == SumUsed(held.digest)
    with pytest.raises(UnexpectedRequest, match=f"{MOST_REPLAYS + 1} sums"):
        member.handle(with_parameters(model=held.digest)(first))


def test_what_comes_beside_a_frame_is_not_fetched_if_it_is_longer_than_the_model():
    member, _, _ = asked()
    for kind in (SendSum, SendModel):
        member.client.check_expected(kind, len(MODEL.data))
        with pytest.raises(UnexpectedRequest, match="allows at most"):
            member.client.check_expected(kind, len(MODEL.data) + 1)


def test_a_long_frame_is_not_read():
    _, (first, _), _ = asked()
    long = with_parameters(beacon=bytes(SendSum.longest))(first)
    with pytest.raises(MalformedMessage, match="exceeds the limit"):
        wire.decode(wire.encode(long), SendSum, bulk=long.vector)


# What a server keeps


def test_a_server_keeps_no_sums_of_another_length_and_none_before_one_that_was_not_delivered(course):
    course.missed(2)
    sums = course.engine.recent_sums
    invite = invite_to(parameters_of(9, course.model), course.model, dim=LENGTH)
    assert len(sums.since(MODEL.digest)) == 3
    sums.begin(invite)
    assert len(sums.since(MODEL.digest)) == 3
    sums.keep(9, parameters_of(9, course.model), [None])
    assert not sums.since(MODEL.digest)
    course.missed(1)
    sums.begin(msgspec.structs.replace(invite, dim=LENGTH + 1))
    assert not sums._sums


def test_a_server_keeps_no_more_sums_than_are_replayed():
    _, (first, _), _ = asked()
    sums, private = RecentSums(), DistributedDP.from_parameters(first.parameters, LENGTH)
    sums.begin(invite_to(parameters_of(9, MODEL), MODEL, dim=LENGTH, model_bytes=1 << 30))
    for number in range(MOST_REPLAYS + 5):
        digest = number.to_bytes(32, "big")
        parameters = msgspec.structs.replace(first.parameters, model=digest)
        sums.keep(number, parameters, [Dispatch(0, 4, bytes(private.delivered_size(0)))])
    assert not sums.since((4).to_bytes(32, "big"))
    assert len(sums.since((5).to_bytes(32, "big"))) == MOST_REPLAYS


@pytest.mark.parametrize("grid", [FOLDED, PLAIN], ids=["k", "d"])
def test_whatever_is_wrong_with_a_sum_it_is_answered_or_refused(grid):
    """Anything but an error of the tree would end the process of a client."""
    _, sums, target = asked(grid=grid)
    invite = invite_to(parameters_of(9, target), target, dim=LENGTH)
    rng, refused = random.Random("missed sums"), 0
    for number in range(200):
        member = Member(LATE, update=np.zeros(LENGTH))
        member.client.app = Stepper(np.zeros(LENGTH), member.diary)
        member.client.models.keep(MODEL)
        member.handle(invite, *sums[: number % 2])
        data, bulk = mutated(sums[number % 2], rng)
        try:
            (reply,) = member.handle(wire.decode(data, SendSum, bulk=bulk))
            assert isinstance(reply, SumUsed)
        except DordisError:
            refused += 1
    assert 100 < refused < 200


@pytest.mark.parametrize("used", [0, 1, 2])
def test_a_client_that_was_killed_between_sums_goes_on_from_what_is_on_its_disk(tmp_path, used):
    """The model is there with the last sum; what the sums before led to is not, and the server is told so."""

    def started():
        directory = ClientDirectory(tmp_path)
        member = Member(LATE, update=np.zeros(LENGTH), journals=directory.journals, models=directory.models)
        member.app = member.client.app = Stepper(np.zeros(LENGTH), member.diary)
        return member

    _, sums, target = asked()
    ClientDirectory(tmp_path).models.keep(MODEL)
    invite = invite_to(parameters_of(9, target), target, dim=LENGTH)
    before = started()
    assert before.handle(invite, *sums[:used])[0].holds == MODEL.digest
    before.client.stop()
    again = started()
    again.client.restore(invite.round)
    if used == 1:
        assert again.handle(sums[1]) == [SumUsed(MODEL.digest)]
    if used < 2:
        assert again.handle(sums[0]) == [SumUsed(sums[1].parameters.model)]
    assert again.handle(sums[1]) == [SumUsed(target.digest)]  # with two, its answer was lost
    again.handle(Train())
    ((_, model),) = again.app.told
    assert model.tobytes() == target.data
