"""How many clients a run needs: what the noise leaves of its signal, and which cohort would leave more.

If all updates have the length of the clip bound and agree, a round has the signal-to-noise ratio n / (z sqrt(d)), where
z is the noise on the sum over the clip bound.  R rounds together have sqrt(R) times as much.  Every client takes part
k = R n / N times, and z grows as sqrt(k): the ratio of the whole run is sqrt(N n) / (z_1 sqrt(d)), with the z_1 of one
participation, whatever R is.  Updates that agree less have less, so that the ratio is what a run has at most.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dordis.errors import InputError
from dordis.privacy.accounting import delta_warnings
from dordis.privacy.planning import Plan

NOTHING, EQUAL, ENOUGH = 0.1, 1.0, 10.0
"""Ratios of a whole run: below the first next to nothing is learnt, from the last on the noise costs little."""
LARGEST_COHORT = 1000
"""Clients a round that are proposed at most; more can take part."""
LARGEST_EPSILON = 20.0
"""Above it a guarantee says little."""
MORE_ROUNDS = 4
"""Times the rounds that were asked for: no more are proposed."""

Replan = Callable[[int, int], Plan]
"""Plans the same run with another n and R."""


@dataclass(frozen=True)
class Advice:
    """Hold what to tell about a plan: larger cohorts at the same budget, and the plan that dordis would choose."""

    plan: Plan
    larger: tuple[Plan, ...]
    chosen: Plan


def run_ratio(plan: Plan) -> float:
    """Return the signal-to-noise ratio of all rounds together, at most."""
    return plan.signal_to_noise * math.sqrt(plan.setting.participation.rounds)


def advise(plan: Plan, replan: Replan) -> Advice:
    """Look at larger cohorts, and choose the smallest that has enough, or else the largest that there can be."""
    cohort = plan.setting.participation
    population, n, rounds = cohort.population, cohort.per_round, cohort.rounds
    larger = tuple(_possible(replan, sizes(n, population), rounds))
    even = next(_possible(replan, (n,), whole_rounds(population, n, rounds)), plan)
    if run_ratio(even) >= ENOUGH or not larger:
        return Advice(plan, larger, even)
    enough = two_digits(math.ceil(n * (ENOUGH / run_ratio(even)) ** 2))
    wanted = max(n, min(enough, population, LARGEST_COHORT))
    return Advice(plan, larger, next(_possible(replan, (wanted,), whole_rounds(population, wanted, rounds)), even))


def sizes(per_round: int, population: int) -> tuple[int, ...]:
    """Return larger cohorts: two, four and ten times as many clients a round, or all.

    >>> sizes(100, 1000), sizes(400, 1000), sizes(10, 10)
    ((200, 400, 1000), (800, 1000), ())
    """
    return tuple(sorted({min(times * per_round, population) for times in (2, 4, 10)} - {per_round}))


def whole_rounds(population: int, per_round: int, rounds: int) -> int:
    """Return how many rounds use what clients pay for: they pay for whole participations.

    >>> whole_rounds(539, 100, 51), whole_rounds(1000, 1000, 57)
    (53, 57)
    """
    participations = -(-rounds * per_round // population)
    return min(participations * population // per_round, MORE_ROUNDS * rounds)


def two_digits(count: int) -> int:
    """Round a count up to two digits.

    >>> two_digits(1163), two_digits(7)
    (1200, 7)
    """
    return -(-count // _unit(count)) * _unit(count)


def clients_for(plan: Plan, ratio: float) -> int:
    """Return about how many clients would have a ratio, with the same part of them in a round.

    The ratio grows as sqrt(N n), so in proportion to N.
    """
    return max(2, two_digits(math.ceil(plan.setting.participation.population * ratio / run_ratio(plan))))


def parameters_for(plan: Plan, ratio: float) -> int:
    """Return about how many parameters a model may have for a ratio, with the same clients; 0 if none can have it."""
    count = math.floor(plan.setting.dim * (run_ratio(plan) / ratio) ** 2)
    return count // _unit(count) * _unit(count)


def warnings(plan: Plan) -> tuple[str, ...]:
    """Say what is wrong with a plan, if anything is."""
    found, clients = [], plan.setting.participation.population
    if run_ratio(plan) < NOTHING:
        found.append(
            f"next to nothing will be learnt: the noise of the whole run is {1 / run_ratio(plan):.3g} times as long as "
            "its signal, even if all updates agree"
        )
    found += delta_warnings(plan.setting.given_delta, clients)
    if plan.epsilon > LARGEST_EPSILON:
        found.append(
            f"epsilon = {plan.epsilon:.3g} is above {LARGEST_EPSILON:g}: it promises a client next to nothing, even if "
            "attacks that are known may fail"
        )
    return tuple(found)


def _unit(count: int) -> int:
    """Return the place of the second digit."""
    return int(10 ** max(0, len(str(count)) - 2))


def _possible(replan: Replan, cohorts: tuple[int, ...], rounds: int) -> Iterator[Plan]:
    """Plan for cohorts, leaving out those that the other settings do not allow."""
    for per_round in cohorts:
        try:
            yield replan(per_round, rounds)
        except InputError:
            continue
