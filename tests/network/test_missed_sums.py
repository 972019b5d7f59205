"""A visiting client makes the model from the sums that it missed, or takes the whole model if they are wrong."""

import asyncio
import logging
import time
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from dordis.errors import MalformedMessage, ProtocolError
from dordis.network.download_endpoint import SumDocument, read_sums
from dordis.network.visits import PublishedRound
from dordis.protocols.limits import MOST_REPLAYS
from dordis.rounds.invitation import Train
from tests.network.test_visitor import visitor
from tests.network.test_visits import INDEX, Visits, run
from tests.rounds.parties import invite_to
from tests.rounds.test_catch_up import LATE, LENGTH, Course, parameters_of

pytestmark = pytest.mark.network


@pytest.fixture
def course():
    """Five clients; one has missed two rounds."""
    course = Course.of()
    course.missed(2)
    return course


@pytest.fixture
def visits(folder):
    visits = Visits(folder)
    yield visits
    visits.server.stop()


def sums_of(course):
    return course.engine.recent_sums.all


def test_the_document_has_the_sums_since_every_model(course):
    sums = sums_of(course)
    document = SumDocument.from_sums(sums)
    for place, one in enumerate(sums):
        assert read_sums(document.since(one.parameters.model)) == list(sums[place:])
    assert document.since(course.model.digest) is None
    assert read_sums(b"") == []


def test_a_document_that_is_cut_short_or_too_long_is_refused(course):
    data = SumDocument.from_sums(sums_of(course)[-1:]).data
    for end in (1, 3, 4, len(data) // 2, len(data) - 1):
        with pytest.raises(MalformedMessage):
            read_sums(data[:end])
    assert len(read_sums(data * MOST_REPLAYS)) == MOST_REPLAYS
    with pytest.raises(MalformedMessage, match="more than"):
        read_sums(data * (MOST_REPLAYS + 1))


class Visiting:
    """The late client at a server that publishes the next round with these sums."""

    def __init__(self, visits, course, sums):
        self.client, self.visits = course.members[LATE].client, visits
        self.told, model = course.members[LATE].app.told, course.model
        parameters = parameters_of(course.index, model, *course.kind)
        self.invite = invite_to(parameters, model, dim=LENGTH, number=course.index)
        self.accepted = self.client.handle(self.invite)
        opening = SimpleNamespace(request=None, is_full=False)
        document = SumDocument.from_sums(sums)
        published = PublishedRound(INDEX, b"task", time.time() + 3600, model, {1}, 1 << 20, document)
        visits.server.perform(visits.endpoint.take(opening, published))
        self.paths = []
        self.visitor = visitor(visits)
        ask = self.visitor._requests.request
        self.visitor._requests.request = lambda method, path, **options: (
            self.paths.append(path.split("/")[1]),
            ask(method, path, **options),
        )[1]

    def catch_up(self):
        return self.visitor._catch_up(self.client, SimpleNamespace(invite=self.invite), self.accepted.holds)

    def take_model(self):
        """Take the model as `_contribution` does, and train."""

        async def take():
            task = SimpleNamespace(invite=self.invite)
            await self.visitor._take_model(self.client, task, self.accepted)

        run(take())
        self.client.handle(Train())
        return next(model for _, model in reversed(self.told) if isinstance(model, np.ndarray))


def test_a_client_makes_the_very_model_from_the_sums_that_it_missed(visits, course):
    visiting = Visiting(visits, course, sums_of(course))
    assert not visiting.accepted.has_model
    assert np.array_equal(visiting.take_model(), course.model.array)
    assert visiting.paths == ["sums"]


@pytest.mark.parametrize("lie", ["another sum", "the last one is missing", "none"])
def test_a_wrong_sum_is_noticed_and_the_whole_model_taken_instead(visits, course, caplog, lie):
    caplog.set_level(logging.WARNING)
    *first, last = sums_of(course)
    altered = replace(last, vector=bytes([last.vector[0] ^ 1]) + last.vector[1:])
    sums = {"another sum": [*first, altered], "the last one is missing": first, "none": []}[lie]
    visiting = Visiting(visits, course, sums)
    assert np.array_equal(visiting.take_model(), course.model.array)
    assert visiting.paths == ["sums", "model"]
    assert ("do not lead to the model" in caplog.text) == (lie != "none")


def test_a_sum_of_another_length_ends_the_visit_with_the_reason(visits, course):
    *first, last = sums_of(course)
    visiting = Visiting(visits, course, [*first, replace(last, vector=last.vector + b"\0")])
    with pytest.raises(ProtocolError, match="longer or shorter"):
        visiting.take_model()


def test_sums_that_are_longer_than_the_model_are_not_read_to_their_end(visits, course):
    *first, last = sums_of(course)
    visiting = Visiting(visits, course, [*first, replace(last, vector=bytes(1 << 20))])
    with pytest.raises(MalformedMessage, match="more than"):
        run(visiting.catch_up())


def test_sums_are_those_of_the_open_round_and_resume(visits, course):
    model = course.model.digest.hex()
    Visiting(visits, course, sums_of(course))
    held = sums_of(course)[0].parameters.model.hex()
    whole = SumDocument.from_sums(sums_of(course)).data

    async def visit():
        path = f"/sums/{model}?since={held}"
        assert (await visits.request("GET", path))[::2] == (200, whole)
        assert (await visits.request("GET", path, Range="bytes=100-"))[::2] == (206, whole[100:])
        for wrong in (
            f"/sums/{model}",
            f"/sums/{model}?since=zz",
            f"/sums/{model}?since={model}",
            f"/sums/00?since={held}",
        ):
            assert (await visits.request("GET", wrong))[0] == 404, wrong

    asyncio.run(visit())
