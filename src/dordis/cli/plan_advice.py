"""Advice at the end of `dordis plan noise`: are there enough clients, and which numbers of clients and rounds are
better?"""

from dordis.privacy.advice import (
    ENOUGH,
    EQUAL,
    NOTHING,
    Advice,
    clients_for_ratio,
    describe_ratio,
    list_warnings,
    parameters_for_ratio,
    run_ratio,
)
from dordis.privacy.planning import Plan
from dordis.report.numbers import format_bytes
from dordis.rounds.impossible_sums import plan_warnings


def sentences(advice: Advice) -> tuple[str, ...]:
    """Return the advice as sentences, with the warnings about the plan last."""
    plan = advice.plan
    warned = (f"warning: {warning}" for warning in all_warnings(plan))
    return (
        _describe_round(plan),
        describe_run(plan),
        describe_larger_rounds(advice),
        _describe_needs(plan),
        _describe_choice(advice.chosen),
        *warned,
    )


def all_warnings(plan: Plan) -> tuple[str, ...]:
    """Return all warnings about a plan, including those about the check for impossible sums."""
    return *list_warnings(plan), *plan_warnings(plan)


def _describe_round(plan: Plan) -> str:
    ratio = plan.signal_to_noise
    return (
        f"The mean of {plan.setting.clients:,} clients comes with noise that is {1 / ratio:.3g} times as long as the "
        f"clip bound. The mean itself is as long as the clip bound at most, if all updates agree: a signal-to-noise "
        f"ratio of {ratio:.3g} in a round."
    )


def describe_run(plan: Plan) -> str:
    """Return two sentences: the signal-to-noise ratio of all rounds together, and what makes this ratio larger."""
    cohort = plan.setting.participation
    alone, both = "the number of clients a round", "the square root of (clients a round x all clients)"
    grows = alone if cohort.accounting == "all-rounds" else both
    if cohort.releases == 1 and cohort.rounds * cohort.per_round < cohort.population:
        more = "more rounds help until every client has taken part once, and no longer"
    else:
        more = "more rounds alone do not help, because a client that takes part more often needs more noise"
    rounds = "The one round has" if cohort.rounds == 1 else f"All {cohort.rounds:,} rounds together have"
    return (
        f"{rounds} a ratio of {run_ratio(plan):.3g}: {describe_ratio(run_ratio(plan))}. The ratio "
        f"grows with {grows}; {more}."
    )


def describe_larger_rounds(advice: Advice) -> str:
    """Return a sentence with the signal-to-noise ratios of runs with more clients in a round, at the same epsilon."""
    if not advice.larger:
        return "A round cannot have more clients than these: more clients in all, or a smaller model, would help."
    ratios = ", ".join(f"{run_ratio(plan):.3g} with {plan.setting.clients:,}" for plan in advice.larger)
    return f"More clients a round are the best lever. Their ratios at the same epsilon: {ratios}."


def _describe_needs(plan: Plan) -> str:
    """Return a sentence: how many clients, or how small a model, would give a signal-to-noise ratio of 1 or of 10."""
    clients = " and ".join(
        f"{clients_for_ratio(plan, ratio):,} clients for a ratio of {ratio:g}" for ratio in (EQUAL, ENOUGH)
    )
    models = [f"{count:,}" for ratio in (EQUAL, ENOUGH) if (count := parameters_for_ratio(plan, ratio))]
    smaller = f"a model of about {' or '.join(models)} parameters" if models else "no model is small enough"
    return (
        f"It takes about {clients}, with the same part of them in a round; "
        f"{'or, ' if models else ''}with these clients, {smaller}."
    )


def _describe_choice(chosen: Plan) -> str:
    """Return a sentence with the recommended numbers of clients per round and of rounds, and the resulting traffic."""
    cohort, size, ratio = chosen.setting.participation, chosen.bytes_per_client, run_ratio(chosen)
    upload, often = format_bytes(size), _times(cohort.releases)
    if ratio < NOTHING:
        return (
            f"No other numbers of clients a round and rounds help: {cohort.per_round:,} a round have a ratio of "
            f"{ratio:.3g}, and a client would send {upload} {often} for nothing."
        )
    return (
        f"dordis would choose {cohort.per_round:,} clients a round and {cohort.rounds:,} "
        f"{'round' if cohort.rounds == 1 else 'rounds'}, with a ratio of "
        f"{ratio:.3g}: a client takes part {often} and sends {upload} each time, "
        f"{format_bytes(size * cohort.releases)} in all; the server receives {format_bytes(size * cohort.per_round)} "
        "a round. "
        "Keys, shares and the model come on top."
    )


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count:,} times"


def advice_fields(advice: Advice) -> dict[str, object]:
    """Return the advice as JSON fields."""
    chosen = advice.chosen.setting.participation
    return {
        "signal_to_noise_run": run_ratio(advice.plan),
        "larger_cohorts": {str(plan.setting.clients): run_ratio(plan) for plan in advice.larger},
        "chosen": {
            "per_round": chosen.per_round,
            "rounds": chosen.rounds,
            "participation_cap": chosen.releases,
            "bytes_per_client": advice.chosen.bytes_per_client,
            "signal_to_noise_run": run_ratio(advice.chosen),
        },
        "warnings": list(all_warnings(advice.plan)),
        "advice": list(sentences(advice)),
    }
