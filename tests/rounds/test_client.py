"""One client, all messages: what it does in which order, what it refuses, and what is left of its data."""

import contextlib
import gc
import weakref
from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from dordis.errors import (
    Aborted,
    DordisError,
    InputError,
    MalformedMessage,
    NotReady,
    ParametersRefused,
    ProtocolError,
    UnexpectedRequest,
    UnusableUpdate,
)
from dordis.owner.directory import ClientDirectory
from dordis.privacy.further_releases import FurtherRelease, PlannedRelease
from dordis.privacy.record_encoding import RecordEncoding
from dordis.protocols.delivery import Dispatch, Store, Stored
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.plaintext import PLAINTEXT, Begin, Contribute, Contribution, Disclose, Joined
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import CollectInput, PrepareInput
from dordis.rounds.app import AppForm, RoundInfo
from dordis.rounds.invitation import LARGEST_MODEL, Accepted, PieceReceived, Ready, SendModel, Train, check_terms_kept
from dordis.rounds.model import ModelBytes
from dordis.rounds.user_code import ZeroOnFailure
from tests.case_samples import sample_cases
from tests.rounds.parties import (
    DIM,
    IDS,
    MODEL,
    RUN,
    Federation,
    Member,
    Witness,
    agreed,
    course,
    invite_to,
    pieces,
    sums,
    until,
)

ME = 1
P = agreed(index=3, chunks=2)
NEXT = agreed(index=4, chunks=2)
WHOLE = course(P)
WITH_MODEL = [invite_to(P), *pieces()]
TRAINED = [*WITH_MODEL, Train()]


def after(*requests, **options):
    """Return a member that has answered these requests."""
    member = Member(ME, **options)
    member.handle(*requests)
    return member


def check_gone(member, *requests):
    """The round is over for this client: whatever comes, nothing is answered and nobody is asked."""
    written = [*member.diary]
    for request in requests or (Train(), Begin(P), Contribute(0), Store(0)):
        with pytest.raises((Aborted, UnexpectedRequest)):
            member.handle(request)
    assert member.diary == written


# The order of a round


def test_the_owner_is_asked_before_the_application_and_counts_before_data_leaves():
    member, diary = Member(ME), {}
    for request in WHOLE:
        before = len(member.diary)
        member.handle(request)
        diary.setdefault(type(request).__name__, []).extend(member.diary[before:])
    assert diary == {
        "Invite": ["accept"],
        "SendModel": [],
        "Train": ["train", "prepare_data"],
        "Begin": ["consent"],
        "Contribute": ["attend", "attend"],
        "Disclose": [],
        "Dispatch": [],
        "Store": ["use_output"],
    }


def test_the_application_is_told_of_the_round_the_model_and_the_sum():
    (first, model), (second, aggregate) = after(*WHOLE).app.told
    assert first == second == RoundInfo(number=4, index=3, run=RUN, clip=1.0)  # that of the try, not the server's
    assert np.array_equal(model, MODEL.array)
    assert not model.flags.writeable
    assert aggregate.survivors == (len(IDS), len(IDS))
    assert aggregate.mean.shape == (DIM,)


def test_what_is_uploaded_is_the_update_encoded_for_the_parameters_of_the_round():
    quiet = agreed(index=3, bits=16)
    seen = []

    def spying(me, given, **options):
        seen.append(given.vector.copy())
        return PLAINTEXT.client(me, given, **options)

    member = Member(ME, replace(PLAINTEXT, client=spying), update=np.linspace(-1, 1, DIM) / 5)
    member.handle(*until(course(quiet), Contribute))
    (vector,) = seen
    decoded = DistributedDP.from_parameters(quiet, DIM).mechanism.decode(vector, 1, quiet.encoding.rotation)
    assert np.allclose(decoded, member.app.update, atol=2 / quiet.encoding.scale)


def test_an_owner_that_refuses_an_invitation_keeps_the_application_out_of_it():
    member = Member(ME)
    member.owner.refuses = "accept"
    with pytest.raises(ParametersRefused, match="refuses to accept"):
        member.handle(invite_to(P))
    assert member.diary == ["accept"]
    check_gone(member)


def test_an_owner_that_refuses_to_train_keeps_the_model_from_the_application():
    member = after(*WITH_MODEL)
    member.owner.refuses = "train"
    with pytest.raises(ParametersRefused, match="refuses to train"):
        member.handle(Train())
    assert member.diary == ["accept", "train"]
    check_gone(member)


def test_an_owner_that_refuses_the_parameters_lets_nothing_be_encoded():
    member = after(*TRAINED)
    member.owner.refuses = "consent"
    with pytest.raises(ParametersRefused, match="refuses to consent"):
        member.handle(Begin(P))
    check_gone(member)


def test_whoever_is_not_selected_says_so_and_trains_nothing():
    member = Member(ME)
    member.owner.selected = False
    assert member.handle(invite_to(P)) == [Accepted(selected=False, has_model=False)]
    check_gone(member)
    assert member.diary == ["accept"]


def test_the_proof_of_the_selection_is_in_the_answer():
    class Drawing(Witness):
        def accept(self, invite):
            return b"a proof"

    (accepted,) = Member(ME, owner=Drawing([])).handle(invite_to(P))
    assert accepted == Accepted(selected=True, has_model=False, proof=b"a proof")


@pytest.mark.parametrize("request_", [*pieces()[:1], Train(), Begin(P), Contribute(0), Dispatch(0, 7, b""), Store(0)])
def test_nothing_is_answered_before_an_invitation(request_):
    member = Member(ME)
    with pytest.raises(UnexpectedRequest, match="before an invitation"):
        member.handle(request_)
    assert not member.diary


# Invitations


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"round": P.round[1:]}, MalformedMessage),
        ({"round": P.round + b"\0"}, MalformedMessage),
        ({"dim": 0}, ParametersRefused),
        ({"model_bytes": -1}, ParametersRefused),
        ({"model_bytes": LARGEST_MODEL + 1}, ParametersRefused),
        ({"dtype": "<i4"}, InputError),
        ({"dtype": "O"}, InputError),
    ],
    ids=["a short id", "a long id", "no coordinates", "less than no model", "a huge model", "integers", "objects"],
)
def test_an_invitation_that_is_none_is_refused_before_the_owner_is_asked(changes, error):
    member = Member(ME)
    with pytest.raises(error):
        member.handle(invite_to(P, **changes))
    assert not member.diary


def test_the_same_invitation_gets_the_same_answer_and_the_owner_is_asked_once():
    member = after(*TRAINED)
    assert member.handle(invite_to(P)) == Member(ME).handle(invite_to(P))
    assert member.diary == ["accept", "train", "prepare_data"]
    assert member.handle(Begin(P)) == [Joined()]


@pytest.mark.parametrize("changes", [{"number": 6}, {"dim": DIM + 1}, {"model": bytes(32)}], ids=str)
def test_another_invitation_to_the_same_round_ends_it(changes):
    member = after(*TRAINED)
    for _ in range(2):
        with pytest.raises(UnexpectedRequest, match="another invitation"):
            member.handle(invite_to(P, **changes))
    check_gone(member, invite_to(P), Train(), Begin(P))


def test_an_invitation_that_is_refused_leaves_the_round_under_way_alone():
    member = after(*TRAINED)
    member.owner.refuses = "accept"
    with pytest.raises(ParametersRefused):
        member.handle(invite_to(NEXT))
    assert member.handle(Begin(P)) == [Joined()]


def test_the_next_round_ends_the_one_before():
    member = after(*until(WHOLE, Disclose))
    assert member.handle(invite_to(NEXT), Train()) == [Accepted(selected=True, has_model=True), Ready()]
    check_gone(member, Contribute(1), Begin(P))


# The model


@pytest.mark.parametrize("cut", [1, 7, 64, 160])
def test_the_model_comes_in_pieces_of_any_size(cut):
    sent = [SendModel(start, MODEL.data[start : start + cut]) for start in range(0, len(MODEL.data), cut)]
    member = after(invite_to(P))
    assert member.handle(*sent) == [PieceReceived(piece.offset) for piece in sent]
    assert member.handle(Train()) == [Ready()]
    assert np.array_equal(member.app.told[0][1], MODEL.array)


def test_a_piece_that_came_before_may_come_again():
    first, second, third = pieces()
    member = after(invite_to(P), first, first, second, SendModel(10, MODEL.data[10:90]), third, first)
    assert member.handle(Train(), Train()) == [Ready(), Ready()]
    assert member.diary == ["accept", "train", "prepare_data"]


@pytest.mark.parametrize(
    "piece",
    [
        pieces()[2],
        SendModel(-1, b"x"),
        SendModel(63, MODEL.data[63:65]),
        SendModel(0, b"y" + MODEL.data[1:64]),
        SendModel(64, b""),
        SendModel(64, MODEL.data[64:] + b"x"),
        SendModel(1 << 62, b"x"),
    ],
    ids=["a gap", "before the start", "an overlap", "another content", "nothing", "too long", "far away"],
)
def test_a_piece_out_of_turn_or_beyond_the_promised_length_ends_the_round(piece):
    member = after(invite_to(P), pieces()[0])
    with pytest.raises(UnexpectedRequest, match="pieces are sent in order"):
        member.handle(piece)
    check_gone(member, *pieces()[1:], Train())
    assert member.diary == ["accept"]


def altered(model):
    """Return a model of the same length with one bit changed."""
    return ModelBytes(model.dtype, model.data[:-1] + bytes([model.data[-1] ^ 1]), model.digest)


@pytest.mark.parametrize(
    ("invite", "sent"),
    [
        (invite_to(P), pieces(altered(MODEL))),
        (invite_to(P, model=ModelBytes.from_numbers(np.zeros(40)).digest), pieces()),
        (invite_to(P, model=b""), pieces()),
        (invite_to(P, dtype="<f8"), pieces()),
        (invite_to(P, model_bytes=164), pieces()),
        (invite_to(P), pieces()[:-1]),
        (invite_to(P), []),
        (invite_to(P, model_bytes=0), []),
    ],
    ids=[
        "other bytes", "another digest", "no digest", "another type", "more announced", "a piece missing", "no piece",
        "an empty one in its place",
    ],
)  # fmt: skip
def test_no_data_is_touched_for_a_model_that_is_not_the_promised_one(invite, sent):
    member = after(invite, *sent)
    with pytest.raises(ProtocolError, match="does not have the digest in the invitation"):
        member.handle(Train())
    assert member.diary == ["accept"]
    check_gone(member)


def test_a_client_that_has_the_model_says_so_and_is_not_sent_it():
    member = after(*WHOLE)
    assert member.handle(invite_to(NEXT)) == [Accepted(selected=True, has_model=True)]
    assert member.handle(Train()) == [Ready()]
    assert np.array_equal(member.app.told[2][1], MODEL.array)
    again = after(*WHOLE, invite_to(NEXT))
    with pytest.raises(UnexpectedRequest, match="pieces are sent in order"):
        again.handle(pieces()[0])


def test_the_model_that_the_application_makes_of_the_sum_need_not_be_sent():
    member = after(*until(WHOLE, Dispatch))
    member.app.following = np.arange(40.0) * 3
    member.handle(*sums(P))
    told = ModelBytes.from_numbers(np.arange(40.0) * 3)
    assert not Member(ME).handle(invite_to(NEXT, told))[0].has_model
    assert member.handle(invite_to(NEXT, told)) == [Accepted(selected=True, has_model=True)]
    member.handle(Train())
    assert np.array_equal(member.app.told[2][1], told.array)
    assert not member.handle(invite_to(agreed(index=5), MODEL))[0].has_model  # the last one only is kept


def test_an_application_without_a_model_is_sent_none():
    empty = ModelBytes.from_numbers(())
    member = Member(ME)
    assert member.handle(invite_to(P, empty)) == [Accepted(selected=True, has_model=True)]
    assert member.handle(Train()) == [Ready()]
    assert member.app.told[0][1].size == 0


# Updates


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (np.zeros(DIM + 1), "shape"),
        (np.zeros(0), "shape"),
        (np.zeros((DIM, 1)), "shape"),
        (0.0, "shape"),
        (np.full(DIM, np.nan), "not finite"),
        (np.array([0.0] * (DIM - 1) + [np.inf], np.float32), "not finite"),
    ],
    ids=["longer", "empty", "of two axes", "a number", "no numbers", "infinite"],
)
def test_an_update_that_cannot_be_encoded_is_a_mistake_of_the_application(update, reason):
    member = after(*WITH_MODEL, update=update)
    with pytest.raises(UnusableUpdate, match=rf"client 1 in round 5 .*{reason}"):
        member.handle(Train())
    check_gone(member)


@pytest.mark.parametrize(
    "failing",
    [
        {"update": np.zeros(DIM + 1)},
        {"update": np.full(DIM, np.nan)},
        {"update": "no numbers"},
        {"raises": ValueError("secret of the client")},
        {"raises": MemoryError()},
        {"raises": SystemExit(1)},
        {"raises": InputError("not today")},
    ],
    ids=str,
)
def test_a_client_of_somebody_else_goes_on_with_a_zero_update_and_tells_its_owner_alone(failing):
    told, seen = [], []

    def spying(me, given, **options):
        seen.append(given.vector.copy())
        return PLAINTEXT.client(me, given, **options)

    member = Member(ME, replace(PLAINTEXT, client=spying), failing.get("update"), user_code=ZeroOnFailure(told.append))
    if "raises" in failing:
        member.app.raises["prepare_data"] = failing["raises"]
    assert member.handle(*WITH_MODEL, Train())[-1] == Ready()
    member.handle(*WHOLE[len(TRAINED) :])
    (line,) = told
    assert "the training of client 1 in round 5 failed" in line
    assert not np.any(seen)
    assert member.diary.count("attend") == 2


def test_what_fails_after_the_upload_is_told_to_the_owner_alone():
    told = []
    member = Member(ME, user_code=ZeroOnFailure(told.append))
    member.handle(*until(WHOLE, Dispatch))
    member.app.raises |= {"use_output": ValueError("no"), "next_model": KeyError("no")}
    assert member.handle(*sums(P))[-1] == Stored(1)
    assert [line.split(" failed")[0] for line in told] == [
        "use_output of the application",
        "next_model of the application",
    ]
    assert member.handle(invite_to(NEXT)) == [Accepted(selected=True, has_model=True)]


def test_an_update_that_cannot_be_encoded_is_a_zero_update(monkeypatch):
    told, encode = [], DistributedDP.encode

    def failing(self, update, entropy):
        if np.any(update):
            raise MemoryError
        return encode(self, update, entropy)

    monkeypatch.setattr(DistributedDP, "encode", failing)
    member = after(*TRAINED, user_code=ZeroOnFailure(told.append))
    assert member.handle(Begin(P)) == [Joined()]
    assert ["the encoding of the update failed" in line for line in told] == [True]


def test_an_application_that_is_not_ready_declines_before_it_is_asked_to_train():
    member = after(*TRAINED)
    member.app.ready = False
    with pytest.raises(NotReady, match="client 1 is not ready for round 5"):
        member.handle(invite_to(NEXT))
    assert member.handle(Begin(P)) == [Joined()]  # the round before goes on
    member.app.ready = True
    assert member.handle(invite_to(NEXT))[0].selected
    assert [line for line in member.diary if line == "prepare_data"] == ["prepare_data"]


def test_an_application_that_cannot_say_whether_it_is_ready_is_not():
    told = []
    member = Member(ME, user_code=ZeroOnFailure(told.append))
    member.app.raises["is_ready"] = OSError("no disk")
    with pytest.raises(NotReady):
        member.handle(invite_to(P))
    assert len(told) == 1


FORM = AppForm("<f4", frozenset({40}), frozenset({DIM}))


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "<f8"}, {"dtype": "<f2"}, {"model_bytes": 164}, {"model_bytes": 161}, {"dim": DIM + 1}],
    ids=str,
)
def test_an_invitation_to_another_application_is_refused_before_the_owner_is_asked(changes):
    member = Member(ME, form=FORM)
    with pytest.raises(ParametersRefused, match="has models of 40 numbers of '<f4' and updates of 30 coordinates"):
        member.handle(invite_to(P, **changes))
    assert not member.diary
    assert member.handle(invite_to(P))[0].selected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**33, -(2.0**33)])
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2"])
def test_no_data_is_touched_for_a_model_of_numbers_that_are_not_finite_or_huge(value, dtype):
    with np.errstate(over="ignore"):
        model = ModelBytes.from_numbers([0.0, value, 1.0], dtype)
    member = after(invite_to(P, model), *pieces(model))
    with pytest.raises(ParametersRefused, match="not finite or beyond 4294967296"):
        member.handle(Train())
    assert "prepare_data" not in member.diary


@pytest.mark.parametrize("update", [np.zeros(DIM, np.float32), np.zeros(DIM, np.int64), [0.0] * DIM])
def test_an_update_may_be_made_of_any_numbers(update):
    assert after(*WITH_MODEL, update=update).handle(Train(), Begin(P)) == [Ready(), Joined()]


# The parameters


def test_parameters_before_training_are_refused():
    member = after(*WITH_MODEL)
    with pytest.raises(UnexpectedRequest, match="before the update is made"):
        member.handle(Begin(P))
    check_gone(member)
    assert "prepare_data" not in member.diary


@pytest.mark.parametrize("request_", [Contribute(0), Disclose(0, b""), Dispatch(0, 7, b""), Store(0)])
def test_nothing_of_the_sum_is_answered_before_the_parameters(request_):
    member = after(*TRAINED)
    with pytest.raises(UnexpectedRequest, match="before the round began"):
        member.handle(request_)
    check_gone(member)


def changed(parameters, **fields):
    return msgspec.structs.replace(parameters, **fields)


TERMS = {
    "mode": "malicious",
    "clients": len(IDS) + 1,
    "colluders": P.colluders + 1,
    "bits": P.bits - 1,
    "mechanism": "none",
    "scheme": "exact",
    "clip": P.encoding.clip * 1.01,
    "cost": invite_to(P).terms.cost * (1 - 1e-9),
    "further": ("correct answers",),
}
"""Promises that the parameters do not keep."""
UNFIT = {
    "another index": ({}, agreed(index=9, chunks=2)),
    "another run": ({}, agreed(index=3, chunks=2, run=bytes(32))),
    "another model": ({}, agreed(index=3, chunks=2, model=ModelBytes.from_numbers(np.zeros(40)).digest)),
    "no model": ({}, changed(P, model=b"")),
    "against a rule": ({}, changed(P, bits=40)),
} | {name: ({"terms": changed(invite_to(P).terms, **{name: value})}, P) for name, value in TERMS.items()}


@pytest.mark.parametrize(("invited", "parameters"), UNFIT.values(), ids=UNFIT)
def test_parameters_that_do_not_fit_the_invitation_are_refused_before_the_owner_is_asked(invited, parameters):
    member = after(invite_to(P, **invited), *pieces(), Train())
    with pytest.raises(ParametersRefused):
        member.handle(Begin(parameters))
    assert "consent" not in member.diary
    check_gone(member)


def test_every_promise_is_tested():
    assert {*TERMS, "records"} == set(type(invite_to(P).terms).__struct_fields__)


def test_a_promise_about_records_is_kept():
    terms = invite_to(P).terms
    promised = changed(terms, records=RecordEncoding(sampling=2**31, length=2**22, shift=4, records=10, events=5))
    check_terms_kept(terms, terms)
    with pytest.raises(ParametersRefused):
        check_terms_kept(promised, terms)
    with pytest.raises(ParametersRefused):
        check_terms_kept(terms, promised)


def test_better_parameters_than_promised_are_taken():
    worse = changed(invite_to(P).terms, clients=5, colluders=0, bits=32, cost=1e9)
    assert after(invite_to(P, terms=worse), *pieces(), Train()).handle(Begin(P)) == [Joined()]


def test_other_parameters_for_the_same_round_end_it():
    member = after(*until(WHOLE, Contribute))
    assert member.handle(Begin(P)) == [Joined()]
    with pytest.raises(UnexpectedRequest):
        member.handle(Begin(agreed(index=3, chunks=1)))
    check_gone(member)


# Participation


def test_a_participation_is_counted_before_every_upload_for_one_machine():
    member = after(*WHOLE)
    assert len(member.owner.machines) == 2
    assert len(set(member.owner.machines)) == 1
    assert len(member.owner.machines[0]) == 32
    member.handle(*course(NEXT)[:1], *until(course(NEXT), Disclose)[len(WITH_MODEL) :])
    assert len(set(member.owner.machines)) == 2


def test_an_owner_that_refuses_to_count_lets_nothing_leave():
    member = after(*until(WHOLE, Contribute))
    member.owner.refuses = "attend"
    with pytest.raises(ParametersRefused, match="refuses to attend"):
        member.handle(Contribute(0))
    check_gone(member)


@pytest.mark.parametrize("request_", [Contribute(2), Contribute(-1)])
def test_an_upload_out_of_turn_is_not_counted(request_):
    member = after(*until(WHOLE, Contribute))
    with pytest.raises(UnexpectedRequest):
        member.handle(request_)
    assert "attend" not in member.diary


def test_masking_ahead_of_the_upload_is_not_counted():
    home = Federation.of(SECAGG)
    member = home.members[ME]
    home.gather(invite_to(P))

    def watch(requests):
        kinds.extend({type(request) for request in requests.values()})
        counted.append(len(member.owner.machines))
        if kinds[-1] is PrepareInput:
            assert member.client.handle(PrepareInput(0)).chunk == 0
            assert not member.owner.machines
        return home.exchange(requests)

    kinds, counted = [], []
    tapped = Federation(home.members, SECAGG, tap=lambda exchange: watch)
    tapped.sum(agreed(index=3))
    assert not any(counted[: kinds.index(CollectInput)])
    assert len(member.owner.machines) == 1


# The end


def test_after_the_sum_only_what_was_answered_is_answered_again():
    member = after(*WHOLE)
    assert member.handle(Store(1), Store(1)) == [Stored(1), Stored(1)]
    assert member.diary.count("use_output") == 1
    with pytest.raises(Aborted):
        member.handle(Contribute(0))
    check_gone(member, Store(1), Dispatch(0, 7, b""), Train(), Begin(P))


def test_the_same_request_gets_the_same_answer_until_then():
    member = Member(ME)
    for request in until(WHOLE, Dispatch):
        first = member.handle(request)
        if not isinstance(request, SendModel):
            assert member.handle(request) == first


class Tracing:
    """Keep weak references to the input of a summing protocol."""

    def __init__(self):
        self.inputs = []

    def __call__(self, me, given, **options):
        self.inputs.append(weakref.ref(given.vector))
        return PLAINTEXT.client(me, given, **options)

    def alive(self):
        gc.collect()
        return [vector() for vector in self.inputs if vector() is not None]


def traced(*requests, dtype=np.float32):
    """Return a member, its input, and its update, which the application does not keep."""
    tracing = Tracing()
    member = Member(ME, replace(PLAINTEXT, client=tracing))
    update = np.full(DIM, 0.01, dtype)
    reference = weakref.ref(update)
    updates = [update]
    del update
    member.app.prepare_data = lambda round, model: updates.pop()
    member.handle(*requests)
    return member, tracing, reference


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_update_itself_is_kept_until_it_is_encoded_and_the_input_until_the_end(dtype):
    member, tracing, update = traced(*TRAINED, dtype=dtype)
    assert update() is not None
    member.handle(Begin(P))
    assert update() is None
    assert len(tracing.alive()) == 1
    member.handle(*WHOLE[len(TRAINED) + 1 :])
    assert not tracing.alive()


ENDS = {
    "a request without a place": lambda member: member.handle(Contribute(7)),
    "a refusal": lambda member: setattr(member.owner, "refuses", "attend") or member.handle(Contribute(0)),
    "the next round": lambda member: member.handle(invite_to(NEXT)),
    "another invitation": lambda member: member.handle(invite_to(P, number=1)),
    "closing": lambda member: member.client.close(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("begun", sample_cases([False, True], one_in=2))
def test_nothing_of_the_data_is_left_however_the_round_ends(end, begun):
    member, tracing, update = traced(*TRAINED, *([Begin(P)] if begun else []))
    with contextlib.suppress(DordisError):
        end(member)
    assert update() is None
    assert not tracing.alive()


def test_a_client_shows_nothing_but_its_name():
    secret = bytes(range(100, 132))
    member = Member(ME, signing=secret)
    for request in WHOLE:
        member.handle(request)
        assert repr(member.client) == str(member.client) == "<Client 1>"
        shown = repr(member.client.round)
        assert "0." not in shown
        assert "\\x" not in shown


def test_a_contribution_is_the_encoded_update_with_noise():
    """The upload of the plaintext protocol is as long as the chunk; nothing else of the client is in any answer."""
    answers = Member(ME).handle(*WHOLE)
    assert [type(answer).__name__ for answer in answers].count("Contribution") == 2
    sizes = [len(answer.vector) for answer in answers if isinstance(answer, Contribution)]
    assert sizes == [4 * (span.stop - span.start) for span in P.chunks]


def test_values_of_further_releases_are_the_same_bytes_after_a_kill(tmp_path):
    """A number without an exact double, a negative zero and the least double above zero; nothing is made twice."""
    values = np.array([1 / 3, -0.0, 5e-324])
    parameters = agreed(index=3, bit=PlannedRelease(FurtherRelease("right", 7, values.size, 20), Fraction(4000)))

    def started():
        member = Member(ME, journals=ClientDirectory(tmp_path).journals)
        member.app.further_values = lambda round, model: member.diary.append("further_values") or {"right": values}
        return member

    before = started()
    before.handle(invite_to(parameters), *pieces(), Train())
    update = before.client.round._update.update.tobytes()
    before.client.stop()
    again = started()
    again.client.restore(parameters.round)
    again.handle(Train())
    restored = again.client.round._update
    assert (restored.update.tobytes(), restored.values["right"].tobytes()) == (update, values.tobytes())
    assert "further_values" in before.diary
    assert "further_values" not in again.diary
    again.handle(Begin(parameters))
