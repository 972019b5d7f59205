"""How many clients a run needs: its signal-to-noise ratio, and the ratio with larger cohorts.

A cohort is the n clients of a round.  Let d be the number of coordinates, and z the standard deviation of the noise on
the sum divided by the clip bound.  If the updates of a cohort are equal, and their norm is the clip bound, the
signal-to-noise ratio of the round is n / (z sqrt(d)).  R rounds together have sqrt(R) times this ratio.  Each of the N
clients of the run takes part k = R n / N times, and z grows as sqrt(k).  So the ratio of the whole run is
sqrt(N n) / (z_1 sqrt(d)), whatever R is, where z_1 is the z of a run with one participation.  The updates of real
clients differ, so this ratio is an upper bound on the ratio of real updates.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dordis.errors import HopelessPlan, InputError
from dordis.privacy.accounting import budget_warnings
from dordis.privacy.planning import XNOISE, Plan
from dordis.privacy.xnoise_components import Scheme

NOTHING, EQUAL, ENOUGH = 0.1, 1.0, 10.0
"""Signal-to-noise ratios of a run: below NOTHING almost nothing is learnt, at EQUAL signal and noise have equal norms,
and above ENOUGH the noise costs little."""
LARGEST_COHORT = 1000
"""Largest number of clients per round that `advise` recommends; a configuration may set a larger one."""
MORE_ROUNDS = 4
"""`advise` recommends at most this many times the configured number of rounds."""

Replan = Callable[[int, int], Plan]
"""A function that returns the plan of the same run for given numbers of clients a round and of rounds."""


@dataclass(frozen=True)
class Advice:
    """Advice about `plan`: plans for larger cohorts at the same budget, and `chosen`, the plan that is recommended."""

    plan: Plan
    larger: tuple[Plan, ...]
    chosen: Plan


def run_ratio(plan: Plan) -> float:
    """Return an upper bound on the signal-to-noise ratio of the sum over all rounds of a run."""
    return plan.signal_to_noise * math.sqrt(plan.setting.participation.rounds)


def describe_ratio(ratio: float) -> str:
    """Return a clause that says what a model can learn if the whole run has this signal-to-noise ratio."""
    if ratio < NOTHING:
        return "the noise drowns everything"
    if ratio < EQUAL:
        return "the noise is longer than the signal, and only coarse things are learnt"
    if ratio < ENOUGH:
        return "a model is learnt, and the noise costs accuracy"
    return "the noise costs little accuracy"


def describe_prospects(plan: Plan) -> str:
    """Return a text about the signal-to-noise ratio of a run: what a model can learn, and what improves the ratio."""
    ratio = run_ratio(plan)
    said = f"signal-to-noise ratio of the run {ratio:.3g}: {describe_ratio(ratio)}"
    return said if ratio >= ENOUGH else f"{said}. {describe_needs(plan, EQUAL if ratio < EQUAL else ENOUGH)}"


def describe_needs(plan: Plan, ratio: float) -> str:
    """Return a sentence: with how many clients, or how small a model, the whole run would have the ratio `ratio`."""
    smaller = parameters_for_ratio(plan, ratio)
    model = f", or a model of about {smaller:,} parameters instead of {plan.setting.dim:,}" if smaller else ""
    return f"A ratio of {ratio:g} takes about {clients_for_ratio(plan, ratio):,} clients{model}, or a larger epsilon."


def check_prospects(plan: Plan) -> None:
    """Raise `HopelessPlan` if the signal-to-noise ratio of the whole run (`run_ratio`) is below `NOTHING`."""
    if run_ratio(plan) < NOTHING:
        raise HopelessPlan(run_ratio(plan), describe_needs(plan, EQUAL))


def advise(plan: Plan, replan: Replan) -> Advice:
    """Return plans for larger cohorts, and a recommended plan.

    The recommended plan has as many rounds as possible (`whole_rounds`) without more participations of a client than
    in `plan`.  The size of the cohort stays the same if the run then has a signal-to-noise ratio of at least `ENOUGH`,
    or if no larger cohort can be planned.  Otherwise the cohort has about the least size with this ratio, but at most
    `LARGEST_COHORT`.
    """
    cohort = plan.setting.participation
    population, n, rounds = cohort.population, cohort.per_round, cohort.rounds
    larger = tuple(_plan_possible(replan, larger_cohorts(n, population), rounds))
    even = next(_plan_possible(replan, (n,), whole_rounds(population, n, rounds)), plan)
    if run_ratio(even) >= ENOUGH or not larger:
        return Advice(plan, larger, even)
    enough = round_up_to_two_digits(math.ceil(n * (ENOUGH / run_ratio(even)) ** 2))
    wanted = max(n, min(enough, population, LARGEST_COHORT))
    return Advice(plan, larger, next(_plan_possible(replan, (wanted,), whole_rounds(population, wanted, rounds)), even))


def larger_cohorts(per_round: int, population: int) -> tuple[int, ...]:
    """Return the cohort sizes that are compared with `per_round`: two, four and ten times as many, up to `population`.

    >>> larger_cohorts(100, 1000), larger_cohorts(400, 1000), larger_cohorts(10, 10)
    ((200, 400, 1000), (800, 1000), ())
    """
    return tuple(sorted({min(times * per_round, population) for times in (2, 4, 10)} - {per_round}))


def whole_rounds(population: int, per_round: int, rounds: int) -> int:
    """Return the largest number of rounds in which no client takes part more often than in `rounds` rounds.

    Clients take part equally often.  The result is at most `MORE_ROUNDS` times `rounds`.

    >>> whole_rounds(539, 100, 51), whole_rounds(1000, 1000, 57)
    (53, 57)
    """
    participations = -(-rounds * per_round // population)
    return min(participations * population // per_round, MORE_ROUNDS * rounds)


def round_up_to_two_digits(count: int) -> int:
    """Round a count up to two significant digits.

    >>> round_up_to_two_digits(1163), round_up_to_two_digits(7)
    (1200, 7)
    """
    return -(-count // _unit(count)) * _unit(count)


def clients_for_ratio(plan: Plan, ratio: float) -> int:
    """Return about how many clients N a run needs for a signal-to-noise ratio, rounded up to two digits.

    A round has the same fraction n / N of the clients as in the plan.  The ratio grows as sqrt(N n), thus as N.
    """
    return max(2, round_up_to_two_digits(math.ceil(plan.setting.participation.population * ratio / run_ratio(plan))))


def parameters_for_ratio(plan: Plan, ratio: float) -> int:
    """Return about the largest number of model parameters at which the run has the signal-to-noise ratio `ratio`.

    The result is 0 if even a model of one parameter has a smaller ratio.
    """
    count = math.floor(plan.setting.dim * (run_ratio(plan) / ratio) ** 2)
    return count // _unit(count) * _unit(count)


def list_warnings(plan: Plan) -> tuple[str, ...]:
    """Return warnings about a plan: too much noise, or too large a delta or epsilon."""
    found, clients = [], plan.setting.participation.population
    if run_ratio(plan) < NOTHING:
        found.append(
            f"next to nothing will be learnt: the noise of the whole run is {1 / run_ratio(plan):.3g} times as long as "
            "its signal, even if all updates agree"
        )
    return (*found, *budget_warnings(plan.epsilon, plan.setting.given_delta, clients))


def _unit(count: int) -> int:
    """Return the place value of the second digit of a number: 100 for 1163."""
    return int(10 ** max(0, len(str(count)) - 2))


def _plan_possible(replan: Replan, cohorts: tuple[int, ...], rounds: int) -> Iterator[Plan]:
    """Yield the plan for each size in `cohorts`; sizes that the run's other settings do not allow are left out."""
    for per_round in cohorts:
        try:
            yield replan(per_round, rounds)
        except InputError:
            continue


RATES = tuple(Fraction(tenths, 10) for tenths in range(5))


@dataclass(frozen=True)
class DropoutForecast:
    """The epsilon of a run with `orig`, `conservative` and XNoise, if `dropped` clients drop out of every round.

    `rate` is the dropout rate from which `dropped` was computed.  An epsilon is None if such rounds fail.
    """

    rate: Fraction
    dropped: int
    orig: float | None
    conservative: float | None
    xnoise: float | None


def forecast_dropout(plan: Plan, rates: Sequence[Fraction] = RATES) -> tuple[DropoutForecast, ...]:
    """Return, for each dropout rate, the epsilon of the run by noise scheme.

    At a rate, floor(rate n) of the n clients of a round drop out of every round.
    """
    xnoise = plan.setting.scheme if plan.setting.scheme in XNOISE else Scheme.SINGLE
    schemes = (Scheme.ORIG, Scheme.CONSERVATIVE, xnoise)
    lost = [(rate, math.floor(rate * plan.setting.clients)) for rate in rates]
    return tuple(
        DropoutForecast(rate, gone, *(plan.epsilon_with_dropout(gone, scheme) for scheme in schemes))
        for rate, gone in lost
    )
