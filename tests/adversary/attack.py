"""An attack as a row of a table: an honest round up to a stage, a deviation, the check that refuses it."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from traceback import walk_tb
from typing import Any

from dordis.errors import DordisError
from tests.adversary.participants import BOTH, agreed, forged
from tests.adversary.session import Foiled, Session, Trail

Attempt = Callable[[Session], str]
THE_ATTACK = "the attack itself"


@dataclass(frozen=True)
class Outcome:
    """The result of an attack: `refused_by` names the check and its exception, `stage` the request it refused."""

    succeeded: bool
    refused_by: str
    stage: str
    detail: str


@dataclass(frozen=True)
class Attack:
    """An attack, described by `text` in one sentence, and everything that the tests and the threat model say of it.

    The round has the usual parameters with the changes `agreed`; the server then alters those in `forged`.  After the
    honest stage `after` the `attempt` runs: it returns what the adversary gained, or the party that refuses raises.

    `refused_by` and `stage` are the expected refusal.  Without any one of the functions in `checks` the attack
    succeeds.  Each function in `overlapping` is enough to refuse it: it succeeds only without all of them.
    """

    name: str
    text: str
    attempt: Attempt
    _: KW_ONLY
    refused_by: str
    stage: str
    checks: tuple[str, ...] = ()
    overlapping: tuple[str, ...] = ()
    graphs: tuple[str, ...] = BOTH
    after: int = 0
    agreed: Mapping[str, Any] = field(default_factory=dict)
    forged: Mapping[str, Any] = field(default_factory=dict)

    def run(self, graph: str) -> Outcome:
        """Run the attack on one graph and return its outcome."""
        trail = Trail()
        try:
            session = Session(forged(agreed(graph, **self.agreed), **self.forged), trail)
            session.reach(self.after)
            gained = self.attempt(session)
        except Foiled as foiled:
            return Outcome(False, foiled.by, trail.stage, str(foiled))
        except DordisError as error:
            return Outcome(False, f"{find_refuser(error)} ({type(error).__name__})", trail.stage, str(error))
        return Outcome(True, "", trail.stage, gained)


def attack(name: str, **row: Any) -> Callable[[Attempt], Attack]:
    """Make an attack of the function that attempts it; the function's docstring is the attack's text."""
    return lambda attempt: Attack(name=name, text=attempt.__doc__ or "", attempt=attempt, **row)


def find_refuser(error: DordisError) -> str:
    """Return the innermost `check_*` function that raised an error, or else the innermost function of dordis."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    passed = [(str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname) for frame in frames]
    names = [name for module, name in passed if module.startswith("dordis.")]
    return next((name for name in reversed(names) if name.startswith("check")), [THE_ATTACK, *names][-1])
