"""An attack is a row of a table: a round that goes as it should up to a stage, a deviation, and what that gains."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any

from dordis.adversary.participants import BOTH, agreed, forged
from dordis.adversary.session import Foiled, Session, Trail
from dordis.errors import DordisError

Attempt = Callable[[Session], str]
OWN_CODE, THE_ATTACK = "dordis.adversary", "the attack itself"


@dataclass(frozen=True)
class Outcome:
    """What became of an attack: `refused_by` names the check and the exception, `stage` the request it came at."""

    succeeded: bool
    refused_by: str
    stage: str
    detail: str


@dataclass(frozen=True)
class Attack:
    """Something that an adversary tries; `text` says it in one sentence.

    The round has the usual parameters but for those that are `agreed`, and the server then alters those that are
    `forged`.  When the stage `after` is over, as it should be, comes the `attempt`: it returns what the adversary
    gained, and whoever refuses raises.

    `checks` are the functions that stand in its way each on its own: without any one of them the attack succeeds.
    `overlapping` are those that stand in its way together: it succeeds only without all of them.
    """

    name: str
    text: str
    attempt: Attempt
    checks: tuple[str, ...] = ()
    overlapping: tuple[str, ...] = ()
    graphs: tuple[str, ...] = BOTH
    after: int = 0
    agreed: Mapping[str, Any] = field(default_factory=dict)
    forged: Mapping[str, Any] = field(default_factory=dict)

    def run(self, graph: str) -> Outcome:
        """Try it on one graph, and tell what became of it."""
        trail = Trail()
        try:
            session = Session(forged(agreed(graph, **self.agreed), **self.forged), trail)
            session.reach(self.after)
            gained = self.attempt(session)
        except Foiled as foiled:
            return Outcome(False, foiled.by, trail.stage, str(foiled))
        except DordisError as error:
            return Outcome(False, f"{refuser(error)} ({type(error).__name__})", trail.stage, str(error))
        return Outcome(True, "", trail.stage, gained)


def attack(name: str, **row: Any) -> Callable[[Attempt], Attack]:
    """Make an attack of the function that tries it, whose docstring says what is tried."""
    return lambda attempt: Attack(name, attempt.__doc__ or "", attempt, **row)


def refuser(error: DordisError) -> str:
    """Name the innermost check that an exception went through, or else the function of the package that raised it."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    passed = [(str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname) for frame in frames]
    names = [name for module, name in passed if module.startswith("dordis.") and not module.startswith(OWN_CODE)]
    return next((name for name in reversed(names) if name.startswith("check")), [THE_ATTACK, *names][-1])
