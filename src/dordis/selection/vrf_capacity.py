"""Whether enough clients have participations left in the later rounds of a run with VRF selection.

Each of N clients is selected in each of R rounds with probability n / N, and takes part until its participation cap.
The VRF does not know the cap: with the cap of a balanced schedule, ceil(R n / N), many clients selected in the last
rounds have no participation left.
"""

import math

STARVED = 0.01
"""Largest chance, without a warning, that all tries of the last round fail because clients are at their cap."""


def chance_below(trials: int, p: float, least: int) -> float:
    """Return the chance that fewer than `least` of `trials` independent draws of probability p succeed.

    >>> round(chance_below(4, 0.5, 2), 9)
    0.3125
    """
    if p >= 1:
        return float(least > trials)
    logs = (math.log(p / (1 - p)) * k + math.log(1 - p) * trials if p > 0 else -math.inf for k in range(1, least))
    counts = (math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(1, least))
    terms = (math.exp(ways + log) for ways, log in zip(counts, logs, strict=True))
    return min(1.0, (1 - p) ** trials * (least > 0) + math.fsum(terms))


def expected_cohort(clients: int, per_round: int, cap: int, number: int) -> float:
    """Return the mean number of clients drawn for round `number`, counted from 1, that have a participation left.

    >>> expected_cohort(60, 30, 1, 1), expected_cohort(60, 30, 1, 2)
    (30.0, 15.0)
    """
    return per_round * chance_below(number - 1, per_round / clients, cap)


def is_starved(clients: int, per_round: int, rounds: int, cap: int, least: int, tries: int) -> bool:
    """Tell whether all tries of the last round fail with a chance above `STARVED`, because clients are at their cap."""
    eligible = expected_cohort(clients, per_round, cap, rounds) / clients
    return float(chance_below(clients, eligible, least) ** tries) > STARVED


def working_cap(clients: int, per_round: int, rounds: int, cap: int, least: int, tries: int) -> int | None:
    """Return the least participation cap, from `cap` on, under which the last round is not starved (`is_starved`)."""
    caps = range(cap, rounds + 1)
    return next((c for c in caps if not is_starved(clients, per_round, rounds, c, least, tries)), None)


def working_cohort(clients: int, per_round: int, rounds: int, least: int, tries: int) -> int | None:
    """Return the cohort size nearest to `per_round` for which the cap of a balanced schedule suffices, or None."""
    for n in sorted(range(1, clients + 1), key=lambda n: (abs(n - per_round), n)):
        cap, fewest = -(-rounds * n // clients), max(1, -(-least * n // per_round))
        if n >= 2 and not is_starved(clients, n, rounds, cap, fewest, tries):
            return n
    return None


def describe_starvation(clients: int, per_round: int, rounds: int, cap: int, least: int, tries: int) -> str:
    """Return a warning, with settings that work, if the last round would have too few clients; otherwise empty."""
    if not is_starved(clients, per_round, rounds, cap, least, tries):
        return ""
    left = expected_cohort(clients, per_round, cap, rounds)
    better = working_cap(clients, per_round, rounds, cap, least, tries)
    cohort = working_cohort(clients, per_round, rounds, least, tries)
    ways = [
        *([f"federation.participations = {better} (a cap that works, with more noise)"] if better else []),
        *([f"federation.per_round = {cohort}"] if cohort else []),
        "federation.selection = 'balanced'",
    ]
    return (
        f"VRF selection draws clients that have no participation left: of {per_round} drawn in round {rounds} about "
        f"{left:.0f} may still take part (at most {cap} times each), and {least} are needed: set {', or '.join(ways)}"
    )
