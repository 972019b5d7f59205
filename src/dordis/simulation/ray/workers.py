"""The processes of Ray that a run has, and the exchange with the clients in them.

A process that dies takes its clients with it: from then on they do not answer, as clients do that drop out.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from dordis.errors import DordisError, ProtocolError
from dordis.protocol import ClientId, Message, Requests
from dordis.rounds.meter import MessageMeter
from dordis.simulation.exchange import Lost
from dordis.simulation.ray.worker import Answers

UPLOADS = 8
"""Uploads of one process that wait there to be taken into the sum, at most twice as many."""
GONE = (RayActorError, ObjectLostError)
"""What Ray raises for a process that is gone, or a machine."""

Handle = Any
"""An actor of Ray's."""


class Workers:
    """The processes that clients live in, and which of them are gone."""

    def __init__(self, handles: Sequence[Handle], ids: Sequence[ClientId]) -> None:
        self._handles, self.ids = list(handles), tuple(ids)
        self._place = {u: i % len(handles) for i, u in enumerate(ids)}
        self.gone: set[int] = set()

    def __contains__(self, u: ClientId) -> bool:
        return u in self._place and self._place[u] not in self.gone

    def place(self, u: ClientId) -> int:
        """Return the place of the process that a client lives in."""
        return self._place[u]

    @property
    def alive(self) -> list[int]:
        """Return the places of the processes that are not known to be gone."""
        return [place for place in range(len(self._handles)) if place not in self.gone]

    def begin(self, place: int, name: str, *arguments: Any) -> Any:
        """Have a process do something; return Ray's reference to what comes of it."""
        return getattr(self._handles[place], name).remote(*arguments)

    def result(self, place: int, reference: Any) -> Any:
        """Return what came of it, or None: the process is gone.  A mistake that was made there is raised as it was."""
        try:
            return ray.get(reference)
        except GONE:
            self.gone.add(place)
            return None
        except RayTaskError as error:
            if isinstance(error.cause, DordisError):
                raise error.cause from None
            raise

    def ask(self, name: str, *arguments: Any) -> Iterator[tuple[int, Any]]:
        """Have every process do the same; yield what came of it, as it comes."""
        begun = {self.begin(place, name, *arguments): place for place in self.alive}
        while begun:
            (done, *_), _ = ray.wait(list(begun), num_returns=1)
            place = begun.pop(done)
            result = self.result(place, done)
            if result is not None:
                yield place, result


class RayExchange(MessageMeter):
    """Deliver requests to the processes, those of one process together, and uploads a few at a time."""

    def __init__(self, workers: Workers, lost: Lost) -> None:
        super().__init__()
        self._workers, self._lost = workers, lost

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Yield the replies as they come."""
        waiting = {place: in_parts(asked) for place, asked in self._by_place(requests).items()}
        begun: dict[Any, int] = {}

        def go_on(place: int) -> None:
            part = next(waiting[place], None)
            if part is not None:
                begun[self._workers.begin(place, "answer", part)] = place

        for place in waiting:
            go_on(place)
        while begun:
            (done, *_), _ = ray.wait(list(begun), num_returns=1)
            place = begun.pop(done)
            answers = self._workers.result(place, done)
            if answers is not None:
                go_on(place)
                yield from self._counted(answers)

    def _by_place(self, requests: Requests) -> dict[int, dict[ClientId, Message]]:
        """Return what the clients of each process are asked."""
        asked: dict[int, dict[ClientId, Message]] = {}
        for u, request in requests.items():
            if u in self._workers and not request.ahead and not self._lost(u, request):
                asked.setdefault(self._workers.place(u), {})[u] = request
        return asked

    def _counted(self, answers: Answers) -> list[tuple[ClientId, Message]]:
        self.errors += [(u, ProtocolError(reason)) for u, reason in answers.refusals]
        self.add(answers.meter)
        return answers.replies


def in_parts(requests: Requests) -> Iterator[Requests]:
    """Divide the requests to one process: uploads into parts that it has memory for."""
    most = UPLOADS if any(request.uploads for request in requests.values()) else len(requests)
    left = iter(requests.items())
    while part := dict(islice(left, most)):
        yield part
