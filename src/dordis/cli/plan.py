"""The noise of a run: from a budget to noise, bits and bytes, or from noise to epsilon, and what dropout would do."""

import json
import math
from collections.abc import Iterable
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from dordis.cli.graph import dropped
from dordis.errors import InputError
from dordis.privacy import planning
from dordis.privacy.accounting import Participation, gaussian_multiplier
from dordis.privacy.planning import Outlook, Plan, Setting

AUTO = "auto"


def plan(
    *,
    clients: int,
    per_round: int | None,
    rounds: int | None,
    dim: int | None,
    epsilon: float | None,
    sigma: float | None,
    delta: float | None,
    clip: float,
    clip_share: float,
    bits: str,
    accounting: str,
    dropout: float | None,
    tolerance: int | None,
    colluders: int,
    as_json: bool,
) -> None:
    """Plan the noise for a budget, or account for given noise, and print it with an outlook on dropout."""
    if per_round is None or rounds is None or dim is None:
        raise InputError("plan needs --clients, --per-round, --rounds and --dim; for a graph of SecAgg+, --graph")
    if (epsilon is None) == (sigma is None):
        raise InputError("plan needs either --epsilon, a budget, or --sigma, the noise on the sum")
    if dropout is not None and tolerance is not None:
        raise InputError("give --dropout or --tolerance, not both")
    setting = Setting(
        Participation(clients, per_round, rounds, accounting),
        dim=dim,
        clip=clip,
        delta=delta,
        bits=read_bits(bits),
        tolerance=tolerance if dropout is None else dropped(per_round, dropout),
        colluders=colluders,
        share=clip_share,
    )
    found = planning.plan(setting, epsilon) if epsilon is not None else planning.account(setting, sigma or 0.0)
    outlook = planning.forecast(found)
    if as_json:
        print(json.dumps(fields(found, outlook)))
        return
    console = Console(soft_wrap=True)
    console.print(facts(found))
    console.print(dropouts(found, outlook))
    for term in setting.participation.terms():
        console.print(f"epsilon: {term}")


def read_bits(text: str) -> int | None:
    """Read a number of bits, or `auto`."""
    if text == AUTO:
        return None
    if not text.isdecimal():
        raise InputError(f"--bits takes a number or '{AUTO}', not '{text}'")
    return int(text)


def facts(found: Plan) -> Table:
    """Show the plan."""
    setting = found.setting
    n, cohort = setting.clients, setting.participation
    title = f"{cohort.population} clients, {n} a round, {cohort.rounds} rounds, {setting.dim} coordinates"
    table = Table("what", "value", title=title, show_header=False)
    rows = {
        "epsilon, delta": f"{found.epsilon:.4g}, {setting.given_delta:.4g}",
        "noise multiplier, sigma / Delta2": f"{found.multiplier:.4f}",
        "noise on the sum, sigma / clip": f"{found.sigma / setting.clip:.4f}",
        "the same, trusted server / local privacy": baselines(found),
        "signal-to-noise per round, at most": f"{found.signal_to_noise:.3g}",
        "signal-to-noise, unrelated updates": f"{found.signal_to_noise / math.sqrt(n):.3g}",
        "bits per coordinate": str(found.bits),
        "bytes per client and round": f"{found.bytes_per_client:,}",
        "scale": f"{found.scale:.6g}",
        "block / padded length": f"{setting.block} / {setting.padded}",
        "Delta2^2": str(found.sensitivity.squared),
        "central variance, integer units": f"{float(found.variance):.6f}",
        "components, integer units": components(found),
        "T, dropouts tolerated": f"{setting.T} of {n}, with threshold {setting.t} and T_C = {setting.colluders}",
        "participation cap": str(found.cap),
    }
    if found.bit:
        rows["clipping bit, sigma / Delta2"] = f"{found.bit.multiplier:.4f}"
        rows["part of norms below the clip bound, error"] = f"{found.bit.error(n, setting.kappa):.4f}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def gaussian(found: Plan) -> float | None:
    """Return the multiplier of Gaussian noise, added by a trusted server, that proves the same; None if none does."""
    if not 0 < found.epsilon < math.inf:
        return None
    return gaussian_multiplier(found.epsilon, found.cap, found.setting.given_delta)


def baselines(found: Plan) -> str:
    """Write the noise on the sum, over clip, that a trusted server would add, and that clients on their own would."""
    central = gaussian(found)
    return "none" if central is None else f"{central:.4f} / {central * math.sqrt(found.setting.clients):.4f}"


def components(found: Plan) -> str:
    """Write the variances of a client's base and removable components."""
    base, removable = ([f"{float(v):.6g}" for v in vs] for vs in (found.noise.base, found.noise.removable))
    return f"{', '.join(base) or 'no'} base; {', '.join(removable) or 'no'} removable"


def dropouts(found: Plan, outlook: Iterable[Outlook]) -> Table:
    """Show what epsilon becomes if clients drop out in every round."""
    table = Table("dropout", "dropped", "orig", "conservative", "XNoise", title="epsilon if clients drop out")
    for row in outlook:
        values = (shown(value) for value in (row.orig, row.conservative, row.xnoise))
        table.add_row(f"{float(row.rate):.0%}", str(row.dropped), *values)
    table.caption = f"conservative provides for {found.setting.T} dropouts; beyond them XNoise ends without an output"
    return table


def shown(epsilon: float | None) -> str:
    """Write an epsilon for people."""
    return "no output" if epsilon is None else f"{epsilon:.2f}"


def fields(found: Plan, outlook: Iterable[Outlook]) -> dict[str, object]:
    """Return what is printed as JSON; an epsilon that is infinite or not there is null."""
    setting = found.setting
    return {
        "epsilon": finite(found.epsilon),
        "delta": setting.given_delta,
        "noise_multiplier": found.multiplier,
        "sigma": found.sigma,
        "sigma_int": found.sigma_int,
        "central_gaussian_multiplier": gaussian(found),
        "signal_to_noise": found.signal_to_noise,
        "bits": found.bits,
        "bytes_per_client": found.bytes_per_client,
        "scale": found.scale,
        "block": setting.block,
        "padded_dim": setting.padded,
        "sensitivity_squared": found.sensitivity.squared,
        "variance": str(found.variance),
        "base": written(found.noise.base),
        "removable": written(found.noise.removable),
        "threshold": setting.t,
        "tolerance": setting.T,
        "colluders": setting.colluders,
        "participation_cap": found.cap,
        "clipping_bit_multiplier": found.bit and found.bit.multiplier,
        "fraction_below_error": found.bit and found.bit.error(setting.clients, setting.kappa),
        "dropout": [
            {
                "rate": float(row.rate),
                "dropped": row.dropped,
                "orig": finite(row.orig),
                "conservative": finite(row.conservative),
                "xnoise": finite(row.xnoise),
            }
            for row in outlook
        ],
        "terms": setting.participation.terms(),
    }


def written(variances: Iterable[Fraction]) -> list[str]:
    """Write exact variances."""
    return [str(variance) for variance in variances]


def finite(epsilon: float | None) -> float | None:
    """Return an epsilon that JSON can hold, or None."""
    return None if epsilon is None or math.isinf(epsilon) else epsilon
