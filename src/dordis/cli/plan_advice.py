"""How many clients a run needs, in plain sentences: the end of what `dordis plan` prints."""

from dordis.privacy.advice import (
    ENOUGH,
    EQUAL,
    NOTHING,
    Advice,
    clients_for,
    parameters_for,
    run_ratio,
    warnings,
)
from dordis.privacy.planning import Plan
from dordis.report.numbers import size as amount
from dordis.rounds.possible import plan_warnings


def sentences(advice: Advice) -> tuple[str, ...]:
    """Return the sentences, the warnings last."""
    plan = advice.plan
    warned = (f"warning: {warning}" for warning in all_warnings(plan))
    return (mean(plan), whole(plan), lever(advice), needed(plan), choice(advice.chosen), *warned)


def all_warnings(plan: Plan) -> tuple[str, ...]:
    """Return all warnings about a plan, impossible sums included."""
    return *warnings(plan), *plan_warnings(plan)


def mean(plan: Plan) -> str:
    """Say what the noise does to the mean of a round."""
    ratio = plan.signal_to_noise
    return (
        f"The mean of {plan.setting.clients:,} clients comes with noise that is {1 / ratio:.3g} times as long as the "
        f"clip bound. The mean itself is as long as the clip bound at most, if all updates agree: a signal-to-noise "
        f"ratio of {ratio:.3g} in a round."
    )


def whole(plan: Plan) -> str:
    """Say what all rounds have together."""
    cohort = plan.setting.participation
    alone, both = "the clients a round", "the square root of the clients a round times all clients"
    grows = alone if cohort.accounting == "all-rounds" else both
    if cohort.releases == 1 and cohort.rounds * cohort.per_round < cohort.population:
        more = "more rounds help until every client has taken part once, and no longer"
    else:
        more = "more rounds alone do not help, because a client that takes part more often needs more noise"
    rounds = "The one round has" if cohort.rounds == 1 else f"All {cohort.rounds:,} rounds together have"
    return f"{rounds} a ratio of {run_ratio(plan):.3g}: {verdict(run_ratio(plan))}. It grows with {grows}; {more}."


def verdict(ratio: float) -> str:
    """Say what a ratio lets a model learn."""
    if ratio < NOTHING:
        return "the noise drowns everything"
    if ratio < EQUAL:
        return "the noise is longer than the signal, and only coarse things are learnt"
    if ratio < ENOUGH:
        return "a model is learnt, and the noise costs accuracy"
    return "the noise costs little accuracy"


def lever(advice: Advice) -> str:
    """Say what more clients a round would do."""
    if not advice.larger:
        return "A round cannot have more clients than these: more clients in all, or a smaller model, would help."
    ratios = ", ".join(f"{plan.setting.clients:,} have {run_ratio(plan):.3g}" for plan in advice.larger)
    return f"More clients a round are the best lever. At the same epsilon: {ratios}."


def needed(plan: Plan) -> str:
    """Say how many clients, or how small a model, the ratios take that matter."""
    clients = " and ".join(
        f"{clients_for(plan, ratio):,} clients for a ratio of {ratio:g}" for ratio in (EQUAL, ENOUGH)
    )
    models = [f"{count:,}" for ratio in (EQUAL, ENOUGH) if (count := parameters_for(plan, ratio))]
    smaller = f"a model of about {' or '.join(models)} parameters" if models else "no model is small enough"
    return (
        f"It takes about {clients}, with the same part of them in a round; "
        f"{'or, ' if models else ''}with these clients, {smaller}."
    )


def choice(chosen: Plan) -> str:
    """Say how many clients a round and rounds dordis would choose, and what they cost."""
    cohort, size = chosen.setting.participation, chosen.bytes_per_client
    if run_ratio(chosen) < NOTHING:
        return f"No other numbers of clients a round and rounds help: {cohort.per_round:,} a round have a ratio of " + (
            f"{run_ratio(chosen):.3g}, and a client would send {amount(size)} {times(cohort.releases)} for nothing."
        )
    return (
        f"dordis would choose {cohort.per_round:,} clients a round and {cohort.rounds:,} "
        f"{'round' if cohort.rounds == 1 else 'rounds'}, with a ratio of "
        f"{run_ratio(chosen):.3g}: a client takes part {times(cohort.releases)} and sends {amount(size)} each time, "
        f"{amount(size * cohort.releases)} in all; the server takes in {amount(size * cohort.per_round)} a round. "
        "Keys, shares and the model come on top."
    )


def times(count: int) -> str:
    """Say how often."""
    return "once" if count == 1 else "twice" if count == 2 else f"{count:,} times"


def fields(advice: Advice) -> dict[str, object]:
    """Return the same for programs."""
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
