"""The client of a protocol: requests in order, each answered once; any deviation aborts it."""

from typing import ClassVar

import msgspec
import pytest

from dordis.errors import Aborted, MalformedMessage, UnexpectedRequest
from dordis.protocol import SETUP, ClientState, MemoryJournal, Message, On, ProtocolClient, reply_to, requests_in


class Count(Message, frozen=True):
    """The toy's answer to everything: how many answers it has given."""

    number: int


class Hello(Message, frozen=True):
    reply: ClassVar = Count
    name: str = ""


class Ready(Message, frozen=True):
    reply: ClassVar = Count


class First(Message, frozen=True):
    reply: ClassVar = Count
    chunk: int
    word: str = ""


class Second(Message, frozen=True):
    reply: ClassVar = Count
    chunk: int


class Third(Message, frozen=True):
    reply: ClassVar = Count
    chunk: int


class Fourth(Message, frozen=True):
    reply: ClassVar = Count
    chunk: int


class Stray(Message, frozen=True):
    chunk: int = 0


class ToyState(ClientState):
    secret: str = ""


class Toy(ProtocolClient[ToyState]):
    """Two requests in the set-up; in every chunk First, then Second and Third if the server likes, then Fourth."""

    def __init__(self, journal=None, state=None):
        super().__init__(state or ToyState(), journal or MemoryJournal())
        self.calls = []

    @property
    def setup(self):
        return On(Hello, self.answer), On(Ready, self.answer)

    @property
    def routine(self):
        return (
            On(First, self.answer),
            On(Second, self.answer, optional=True),
            On(Third, self.answer, optional=True),
            On(Fourth, self.answer),
        )

    @property
    def chunks(self):
        return 3

    def answer(self, request):
        if getattr(request, "word", "") == "nonsense":
            raise MalformedMessage("nonsense")
        self.calls.append(request)
        self.state.secret += "s"
        return Count(len(self.calls))


def begun():
    toy = Toy()
    toy.handle(Hello())
    toy.handle(Ready())
    return toy


def check_gone(toy):
    assert toy.state.aborted
    assert toy.state.secret == ""
    for request in (Hello(), First(0), Stray()):
        with pytest.raises(Aborted):
            toy.handle(request)


@pytest.mark.parametrize(
    "kinds",
    [
        [First, Second, Third, Fourth],
        [First, Third, Fourth],
        [First, Second, Fourth],
        [First, Fourth],
        [First, Second],
        [First, Third],
    ],
)
def test_requests_are_answered_in_order_and_optional_ones_may_be_left_out(kinds):
    toy = begun()
    assert [toy.handle(kind(0)).number for kind in kinds] == [3 + i for i in range(len(kinds))]


@pytest.mark.parametrize(
    "kinds",
    [
        [Second],
        [Third],
        [Fourth],
        [First, Third, Second],
        [First, Fourth, Second],
        [First, Fourth, Third],
    ],
)
def test_a_request_before_or_after_its_turn_is_refused(kinds):
    toy = begun()
    for kind in kinds[:-1]:
        toy.handle(kind(1))
    with pytest.raises(UnexpectedRequest):
        toy.handle(kinds[-1](1))
    check_gone(toy)


@pytest.mark.parametrize("requests", [[Ready()], [Hello(), First(0)], [First(0)]])
def test_the_set_up_comes_first_and_whole(requests):
    toy = Toy()
    for request in requests[:-1]:
        toy.handle(request)
    with pytest.raises(UnexpectedRequest):
        toy.handle(requests[-1])
    check_gone(toy)


@pytest.mark.parametrize("request_", [Stray(), First(3), First(-1), Fourth(10**18)])
def test_a_request_without_a_place_is_refused(request_):
    toy = begun()
    with pytest.raises(UnexpectedRequest):
        toy.handle(request_)
    check_gone(toy)


def test_chunks_advance_independently():
    toy = begun()
    for request in (First(2), Fourth(2), First(0), First(1), Second(0), Fourth(1), Fourth(0)):
        toy.handle(request)
    assert toy.state.passed == {SETUP: 2, 0: 4, 1: 4, 2: 4}


def test_a_repeated_request_gets_the_same_answer_and_is_not_computed_again():
    toy = begun()
    requests = [Hello(), Ready(), First(0), Third(0), First(1)]
    answers = [toy.handle(request) for request in requests]
    calls = len(toy.calls)
    assert [toy.handle(request) for request in requests[::-1]] == answers[::-1]
    assert len(toy.calls) == calls == 5
    assert toy.handle(Fourth(0)).number == 6


@pytest.mark.parametrize("altered", [Hello("you"), First(0, "other")])
def test_an_answered_request_with_other_content_is_refused(altered):
    toy = begun()
    toy.handle(First(0))
    with pytest.raises(UnexpectedRequest):
        toy.handle(altered)
    check_gone(toy)


def test_an_error_while_answering_ends_the_machine_and_claims_nothing():
    journal = MemoryJournal()
    toy = Toy(journal)
    toy.handle(Hello())
    toy.handle(Ready())
    with pytest.raises(MalformedMessage):
        toy.handle(First(0, "nonsense"))
    check_gone(toy)
    with pytest.raises(Aborted):  # no copy with the same journal comes back
        Toy(journal).handle(Hello())


def test_an_error_of_any_type_ends_the_machine():
    toy = begun()
    toy.answer = None
    with pytest.raises(TypeError):
        toy.handle(First(0))
    check_gone(toy)


def test_closing_ends_the_machine_and_forgets_what_was_stored():
    journal = MemoryJournal()
    toy = Toy(journal)
    toy.handle(Hello())
    toy.close()
    check_gone(toy)
    assert toy.state.answered == 1
    with pytest.raises(Aborted):
        Toy(journal).handle(Hello())


def test_an_older_copy_catches_up_from_the_journal():
    journal = MemoryJournal()
    toy = Toy(journal)
    toy.handle(Hello())
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(toy.state), type=ToyState)
    answers = [toy.handle(Ready()), toy.handle(First(0))]
    copy = Toy(journal, older)
    assert [copy.handle(Ready()), copy.handle(First(0))] == answers
    assert copy.calls == []
    assert copy.state == toy.state


def test_a_newer_state_is_not_replaced_by_an_older_answer():
    toy = begun()
    toy.handle(First(0))
    toy.handle(Hello())
    assert toy.state.answered == 3


def test_the_journal_computes_an_answer_once_and_refuses_another_digest():
    journal = MemoryJournal()
    assert journal.claim("0/First", b"digest", lambda: (b"changes", b"reply")) == b"reply"
    assert journal.claim("0/First", b"digest", lambda: (b"", b"")) == b"reply"
    assert journal.since(0) == [b"changes"]
    with pytest.raises(UnexpectedRequest):
        journal.claim("0/First", b"other", lambda: (b"", b""))
    journal.close()
    with pytest.raises(Aborted):
        journal.claim("0/First", b"digest", lambda: (b"", b""))


def test_the_journal_claims_nothing_when_the_answer_fails():
    journal = MemoryJournal()
    with pytest.raises(ZeroDivisionError):
        journal.claim("0/First", b"digest", lambda: 1 // 0)
    assert journal.claim("0/First", b"other", lambda: (b"s", b"r")) == b"r"


def test_a_state_shows_nothing_but_progress():
    toy = begun()
    assert repr(toy.state) == "<ToyState after 2 answers>"


def test_a_request_names_the_kind_of_its_answer_and_a_reply_has_none():
    assert reply_to(First(0)) is Count
    for reply in (Count(1), Stray()):
        with pytest.raises(UnexpectedRequest, match="is no request"):
            reply_to(reply)


def test_the_requests_of_a_module_are_those_with_an_answer_in_its_order():
    assert requests_in(globals()) == (Hello, Ready, First, Second, Third, Fourth)
