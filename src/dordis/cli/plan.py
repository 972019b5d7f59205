"""The noise of a run, as `dordis plan` shows it: noise, bits, bytes and epsilon, and what dropout would do."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from dordis.cli import plan_advice, tables
from dordis.privacy import projection
from dordis.privacy.advice import Replan, advise
from dordis.privacy.outlook import Outlook, forecast
from dordis.privacy.planning import Plan
from dordis.rounds.possible import plan_margin

SCHEMES = ("orig", "conservative", "xnoise")


@dataclass(frozen=True)
class Collusion:
    """Colluders of the registry, and the 2^-40 quantile of them in a round for one draw."""

    registry: int
    one_draw: int
    drawn: bool

    def describe(self, T_C: int) -> str:
        """Say how T_C follows from the colluders of the registry."""
        if not self.drawn:
            return f"{T_C}: all of them, because without a beacon the server can choose the selection"
        if self.one_draw == T_C:
            return f"{T_C}, but for a chance of 2^-40"
        return f"{T_C}, in the worst of 2^64 draws that the server may try; {self.one_draw} in one draw"


def show(plan: Plan, replan: Replan, collusion: Collusion, as_json: bool) -> None:
    """Print a plan with an outlook on dropout, and say whether it has enough clients."""
    with tables.working("looking for better numbers of clients"):
        outlook, advice = forecast(plan), advise(plan, replan)
    terms = (f"epsilon: {term}" for term in plan.setting.participation.terms())
    told = fields(plan, outlook, collusion) | plan_advice.fields(advice)
    tables.show(
        as_json, told, facts(plan, collusion), dropouts(plan, outlook), *terms, "", *plan_advice.sentences(advice)
    )


def facts(plan: Plan, collusion: Collusion) -> Table:
    """Show the plan."""
    setting, saving = plan.setting, projection.saving(plan)
    n, cohort = setting.clients, setting.participation
    title = f"{cohort.population} clients, {n} a round, {cohort.rounds} rounds, {setting.dim} coordinates"
    rows = {
        "epsilon, delta": f"{plan.epsilon:.4g}, {setting.given_delta:.4g}",
        **({"part of delta for failing graphs and draws": f"{setting.failure:.3g}"} if setting.failure else {}),
        "noise multiplier: noise over what one client can change": f"{plan.multiplier:.4f}",
        "noise on the sum, over the clip bound": f"{plan.sigma / setting.clip:.4f}",
        "noise on the sum, times what a trusted server would add": written(plan.times_trusted),
        "the same, if every client trusted nobody": written(plan.times_trusted and math.sqrt(n)),
        "projection": saving.words if saving else projection.OFF,
        "signal-to-noise per round, at most": f"{plan.signal_to_noise:.3g}",
        "signal-to-noise, unrelated updates": f"{plan.signal_to_noise / math.sqrt(n):.3g}",
        "bits per coordinate": str(plan.bits),
        "bytes per client and round": f"{plan.bytes_per_client:,}",
        "steps of rounding in a unit of an update": f"{plan.scale:.6g}",
        "coordinates, rotated together and in all": f"{setting.block:,} and {setting.padded:,}",
        "squared norm that one client can change, in steps": f"{plan.sensitivity.squared:,}",
        "variance of the noise on the sum, in steps": f"{float(plan.variance):,.6f}",
        "of it one client adds, in steps": components(plan),
        "clients of a round that may drop out": f"{setting.T} of {n}",
        "clients whose answers a round needs": str(setting.t),
        "colluders among all clients": str(collusion.registry),
        "colluders in a round, at most": collusion.describe(setting.colluders),
        "noise on the sum with these colluders, over that with none": written(math.sqrt(setting.kappa)),
        "rounds of one client, at most": str(plan.cap),
    }
    if plan.bit:
        rows["noise multiplier of the count that moves the clip bound"] = f"{plan.bit.multiplier:.4f}"
        rows["part of norms below the clip bound, error"] = f"{plan.bit.error(n, setting.kappa):.4f}"
    return tables.facts(rows, title)


def written(times: float | None) -> str:
    """Write a factor for people."""
    return "none" if times is None else f"{times:.4f}"


def components(plan: Plan) -> str:
    """Write the variances of a client's noise: of what stays, and of what is removed again unless others drop out."""
    base, removable = ([f"{float(v):.6g}" for v in vs] for vs in (plan.noise.base, plan.noise.removable))
    return (
        f"{', '.join(base) or 'nothing'} for good; {', '.join(removable) or 'nothing'} until who dropped out is known"
    )


def dropouts(plan: Plan, outlook: Iterable[Outlook]) -> Table:
    """Show what epsilon becomes if clients drop out in every round."""
    return tables.table(
        *("dropout", "dropped", "orig", "conservative", "XNoise"),
        rows=(
            (f"{float(row.rate):.0%}", str(row.dropped), *(shown(getattr(row, name)) for name in SCHEMES))
            for row in outlook
        ),
        title="epsilon if clients drop out",
        caption=(
            "orig: clients add even shares; conservative: even shares that are enough if "
            f"{plan.setting.T} drop out; XNoise: as much, and what is too much is removed again. "
            "More dropouts: no output"
        ),
    )


def shown(epsilon: float | None) -> str:
    """Write an epsilon for people."""
    return "no output" if epsilon is None else f"{epsilon:.2f}"


def fields(plan: Plan, outlook: Iterable[Outlook], collusion: Collusion) -> dict[str, object]:
    """Return what is printed as JSON; an epsilon that is infinite or not there is null."""
    setting, saving = plan.setting, projection.saving(plan)
    return {
        "epsilon": finite(plan.epsilon),
        "delta": setting.given_delta,
        "failure": setting.failure,
        "noise_multiplier": plan.multiplier,
        "sigma": plan.sigma,
        "sigma_int": plan.sigma_int,
        "central_gaussian_multiplier": plan.trusted_multiplier,
        "times_trusted_server": plan.times_trusted,
        "signal_to_noise": plan.signal_to_noise,
        "garbage_over_longest_sum": plan_margin(plan),
        "bits": plan.bits,
        "bytes_per_client": plan.bytes_per_client,
        "scale": plan.scale,
        "block": setting.block,
        "padded_dim": setting.padded,
        "buckets": setting.buckets,
        "bytes_unfolded": saving.unfolded_bytes if saving else None,
        "projection_error": saving.error if saving else None,
        "sensitivity_squared": plan.sensitivity.squared,
        "variance": str(plan.variance),
        "base": [str(variance) for variance in plan.noise.base],
        "removable": [str(variance) for variance in plan.noise.removable],
        "threshold": setting.t,
        "tolerance": setting.T,
        "colluders": setting.colluders,
        "all_colluders": collusion.registry,
        "colluders_one_draw": collusion.one_draw,
        "colluders_noise": math.sqrt(setting.kappa),
        "participation_cap": plan.cap,
        "clipping_bit_multiplier": plan.bit and plan.bit.multiplier,
        "fraction_below_error": plan.bit and plan.bit.error(setting.clients, setting.kappa),
        "dropout": [
            {"rate": float(row.rate), "dropped": row.dropped, **{name: finite(getattr(row, name)) for name in SCHEMES}}
            for row in outlook
        ],
        "terms": setting.participation.terms(),
    }


def finite(epsilon: float | None) -> float | None:
    """Return an epsilon that JSON can hold, or None."""
    return None if epsilon is None or math.isinf(epsilon) else epsilon
