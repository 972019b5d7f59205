"""What an attack is: a program that tries to gain something, and the outcome, told by what it gained or who refused."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType

from dordis.adversary.cast import COMPLETE
from dordis.adversary.session import Session, Trail
from dordis.errors import DordisError
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId

OWN_CODE = "dordis.adversary"


@dataclass(frozen=True)
class Outcome:
    """What became of an attack: `refused_by` names the check and the exception, `stage` the request it came at."""

    succeeded: bool
    refused_by: str
    stage: str
    detail: str


class Foiled(Exception):
    """Nobody raised, and still the adversary has nothing: `by` says what stood in its way."""

    def __init__(self, by: str, why: str) -> None:
        super().__init__(why)
        self.by = by


class Attack(ABC):
    """Something that an adversary tries.

    `checks` are the functions that stand in its way each on its own: without any one of them the attack succeeds.
    `overlapping` are those that stand in its way together: it succeeds only without all of them.
    """

    name: str
    text: str
    graphs: tuple[str, ...] = (COMPLETE,)
    checks: tuple[str, ...] = ()
    overlapping: tuple[str, ...] = ()

    @abstractmethod
    def attempt(self, graph: str, trail: Trail) -> str:
        """Return what was gained; whoever refuses raises."""

    def run(self, graph: str = COMPLETE) -> Outcome:
        """Try it, and tell what became of it."""
        trail = Trail()
        try:
            gained = self.attempt(graph, trail)
        except Foiled as foiled:
            return Outcome(False, foiled.by, trail.stage, str(foiled))
        except DordisError as error:
            return Outcome(False, f"{refuser(error)} ({type(error).__name__})", trail.stage, str(error))
        return Outcome(True, "", trail.stage, gained)


def gained(holds: bool, what: str, by: str, why: str) -> str:
    """Return what was gained if it was, else say what stood in the way."""
    if not holds:
        raise Foiled(by, why)
    return what


def recovered(session: Session, victim: ClientId, update: Vector) -> str:
    """Say that the update of one client came out with its own noise only, if it did."""
    return gained(
        bool((update == session.truth(victim)).all()),
        "recovered the victim's update with its own noise only",
        "masks that the adversary does not know",
        "what came out is not the update",
    )


def refuser(error: DordisError) -> str:
    """Name the innermost check that an exception went through, or else the function that raised it."""
    names = _frames(error.__traceback__)
    return next((name for name in reversed(names) if name.startswith("check")), names[-1])


def _frames(trace: TracebackType | None) -> list[str]:
    """Return the functions of the package that an exception went through, but for the attack's own."""
    names = []
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("dordis.") and not module.startswith(OWN_CODE):
            names.append(trace.tb_frame.f_code.co_qualname)
        trace = trace.tb_next
    return names or ["the attack itself"]
