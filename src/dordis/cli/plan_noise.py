"""`dordis plan noise`: a run's noise, epsilon and bytes; its epsilon for each dropout rate; and advice."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.table import Table

from dordis.cli import plan_advice
from dordis.cli.output import facts_table, finite, make_table, print_result, show_progress
from dordis.errors import InputError
from dordis.privacy import planning, projection
from dordis.privacy.accounting import ParticipationSchedule, multiplier_for_cost
from dordis.privacy.advice import DropoutForecast, advise, forecast_dropout
from dordis.privacy.clipping import CLIPPING_BIT, bit_error
from dordis.privacy.further_releases import FurtherValue
from dordis.privacy.planning import Plan
from dordis.privacy.record_accounting import RecordSampling, count_events, sampling_word
from dordis.privacy.record_accounting import epsilon as record_epsilon
from dordis.privacy.setting import Setting
from dordis.protocols.limits import MOST_CLIENTS
from dordis.protocols.parameters import SEMI_HONEST
from dordis.rounds.impossible_sums import plan_margin
from dordis.runs.retry import TRIES
from dordis.runs.threat_model import DropoutNeeds, ThreatModel, count_dropouts, find_needs
from dordis.selection.colluders import OPEN, VRF, is_drawn, round_colluders
from dordis.selection.vrf_selection import describe_starvation

SCHEMES = ("orig", "conservative", "xnoise")


@dataclass(frozen=True)
class NoiseQuestion:
    """The options of `dordis plan noise`."""

    clients: int
    per_round: int
    rounds: int
    dim: int
    epsilon: float | None
    sigma: float | None
    delta: float | None
    clip: float
    clip_share: float
    """Share of the budget for a clip bound that follows a quantile of the norms; 0 if the bound is fixed."""
    bits: int | None
    projection: str | int
    accounting: str
    tolerance: int | None
    dropout: float | None
    colluders: int
    sparse: bool
    """Whether the protocol is `secagg+`."""
    selection: str
    beacon: bool
    mode: str
    sampled: tuple[int, float] | None = None
    """Largest number of records of a client, and sampling probability; None if clients are the unit of privacy."""
    clients_per_person: int = 1
    participations: int | None = None
    """The participation cap; if None, that of a balanced schedule: rounds * per_round / clients, rounded up."""
    assisted: bool = False
    """Whether the protocol is `assisted`: a round needs a least number of contributions, and no other answers."""

    def answer(self) -> Plan:
        """Return the plan of the run: least noise for the budget --epsilon, or the epsilon of the noise --sigma."""
        setting = self._setting(self.per_round, self.rounds)
        if self.epsilon is not None:
            return planning.plan(setting, self.epsilon)
        return planning.account(setting, self.sigma or 0.0)

    def replan(self, per_round: int, rounds: int, epsilon: float) -> Plan:
        """Return the plan of this run with other numbers of clients in a round and of rounds, and another budget."""
        if per_round > MOST_CLIENTS:
            raise InputError(f"a round has at most {MOST_CLIENTS} clients, not {per_round}")
        return planning.plan(self._setting(per_round, rounds), epsilon)

    @property
    def is_drawn(self) -> bool:
        """Tell whether the clients are selected by randomness that the server cannot choose."""
        return is_drawn(self.selection, self.beacon)

    @property
    def one_draw(self) -> int:
        """Return the number of colluders that one random selection exceeds with probability 2^-40 at most.

        Return the number of all colluders if the server can choose the selection.
        """
        return round_colluders(self.selection, self.beacon, self.clients, self.per_round, self.colluders, SEMI_HONEST)

    def describe_colluders(self, T_C: int) -> str:
        """Return in words T_C, the bound on colluders in a round, and how it follows from --colluders."""
        if self.selection == OPEN:
            return f"{T_C}: all of them, because the server decides whom to admit"
        if not self.is_drawn:
            return f"{T_C}: all of them, because without a beacon the server can choose the selection"
        if self.one_draw == T_C:
            return f"{T_C}, but for a chance of 2^-40"
        return f"{T_C}, in the worst of 2^64 draws that the server may try; {self.one_draw} in one draw"

    def needs(self, plan: Plan, dropped: int) -> DropoutNeeds:
        """Return the tolerance and the threshold with which a round succeeds although `dropped` clients drop out."""
        if self.assisted:
            n, least = plan.setting.clients, plan.setting.clients - dropped
            return DropoutNeeds(n, dropped, least, least)
        return find_needs(plan.setting, self.mode, dropped)

    def describe_starvation(self, plan: Plan) -> str:
        """Return a warning if, with VRF selection, later rounds are likely to have too few clients; otherwise empty.

        Clients that have reached the participation cap are missing in later rounds.
        """
        if self.selection != VRF:
            return ""
        return describe_starvation(self.clients, self.per_round, self.rounds, plan.cap, plan.setting.t, TRIES)

    def _record_sampling(self, rounds: int) -> RecordSampling | None:
        if self.sampled is None:
            return None
        return RecordSampling(sampling_word(self.sampled[1]), self.sampled[0], count_events(rounds))

    def _setting(self, per_round: int, rounds: int) -> Setting:
        kind = ThreatModel(self.mode, sparse=self.sparse, drawn=self.is_drawn)
        tolerance = None if self.tolerance is None else self.tolerance * per_round // self.per_round
        if self.assisted and tolerance is None:
            tolerance = per_round // 2 if self.dropout is None else count_dropouts(per_round, self.dropout)
        schedule = ParticipationSchedule(self.clients, per_round, rounds, self.accounting, self.participations)
        setting = Setting(
            schedule,
            dim=self.dim,
            clip=self.clip,
            delta=self.delta,
            bits=self.bits,
            orders=schedule.orders,
            threshold=per_round - (tolerance or 0) if self.assisted else None,
            tolerance=tolerance,
            colluders=round_colluders(self.selection, self.beacon, self.clients, per_round, self.colluders, self.mode),
            further=(FurtherValue(CLIPPING_BIT, self.clip_share),) if self.clip_share else (),
            failure=kind.failure(rounds),
            sparse=kind.sparse,
            records=self._record_sampling(rounds),
        )
        if self.dropout is not None and not self.assisted:
            setting = tolerate(setting, self.mode, self.dropout)
        if setting.records is not None:
            return setting
        if self.sigma is None:
            multiplier = multiplier_for_cost(setting.allowance(self.epsilon or 0.0) * (1 - self.clip_share))
        else:
            multiplier = self.sigma / self.clip
        return replace(setting, buckets=projection.choose_buckets(setting, multiplier, self.projection))


def tolerate(setting: Setting, mode: str, dropout: float) -> Setting:
    """Return the setting with a tolerance and a threshold with which rounds succeed at this dropout rate.

    Raise InputError if no threshold permits so many dropouts.
    """
    needs = find_needs(setting, mode, count_dropouts(setting.clients, dropout))
    if needs.threshold is None:
        raise InputError(f"{needs} (--mode semi-honest)")
    threshold = setting.threshold if needs.threshold == setting.t else needs.threshold
    return replace(setting, tolerance=needs.dropped, threshold=threshold)


def show_plan(question: NoiseQuestion, as_json: bool) -> None:
    """Print the plan, its epsilon for each dropout rate, and advice on the numbers of clients and rounds."""
    plan = question.answer()
    if plan.records is not None:
        print_result(as_json, _record_fields(plan, question), _record_table(plan, question))
        return
    with show_progress("looking for better numbers of clients"):
        outlook = forecast_dropout(plan)
        advice = advise(plan, lambda n, R: question.replan(n, R, plan.epsilon))
    terms = (f"epsilon: {term}" for term in plan.setting.participation.terms())
    starved = question.describe_starvation(plan)
    fields = _plan_fields(plan, outlook, question) | plan_advice.advice_fields(advice) | {"starved": starved or None}
    parts: list[Table | str] = [
        _plan_table(plan, question),
        _dropout_table(plan, outlook, question),
        *terms,
        "",
        *plan_advice.sentences(advice),
        *([f"warning: {starved}"] if starved else []),
    ]
    print_result(as_json, fields, *parts)


def _record_fields(plan: Plan, question: NoiseQuestion) -> dict[str, object]:
    """Return the plan of a run whose unit of privacy is a record, as JSON fields."""
    setting, sampled = plan.setting, plan.setting.records
    if sampled is None:
        raise InputError("the unit of privacy of this plan is the client")
    events = sampled.plan(1 / plan.multiplier**2, setting.distance / setting.releases)
    persons = question.clients_per_person
    return {
        "unit": "record",
        "epsilon": plan.epsilon,
        "delta": setting.given_delta,
        "events": sampled.events,
        "sampling": question.sampled[1] if question.sampled else 1.0,
        "batch": setting.clients * sampled.batch,
        "multiplier": plan.multiplier,
        "kappa": float(setting.kappa),
        "tolerance": setting.T,
        "threshold": setting.t,
        "signal_to_noise": plan.signal_to_noise * math.sqrt(setting.participation.rounds),
        "bits": plan.bits,
        "bytes_per_client": plan.bytes_per_client,
        "clients_per_person": persons,
        "person_epsilon": finite(record_epsilon(events, setting.noise_delta, persons)),
    }


def _record_table(plan: Plan, question: NoiseQuestion) -> Table:
    fields, setting, cohort = _record_fields(plan, question), plan.setting, plan.setting.participation
    title = f"{cohort.population} clients, {cohort.rounds} rounds, {setting.dim} coordinates"
    rows = {
        "epsilon of one record, delta": f"{plan.epsilon:.4g}, {setting.given_delta:.4g}",
        "planned events, spare ones for failed rounds included": str(fields["events"]),
        "expected records in a sum": f"{fields['batch']:,.1f}",
        "noise multiplier: noise over what one record can change": f"{plan.multiplier:.4f}",
        "noise variance left, over that which privacy counts on (kappa)": f"{fields['kappa']:.4f}",
        "signal-to-noise over the run, if all gradients agree": f"{fields['signal_to_noise']:.3g}",
        "clients of a round that may drop out": f"{setting.T} of {setting.clients}",
        "bits per coordinate": str(plan.bits),
        "bytes per client and round": f"{plan.bytes_per_client:,}",
    }
    if question.clients_per_person > 1:
        label = f"epsilon of a person with a record at {question.clients_per_person} clients"
        value = fields["person_epsilon"]
        rows[label] = "none is proved" if value is None else f"{value:.4g}"
    return facts_table(rows, title)


def _plan_table(plan: Plan, question: NoiseQuestion) -> Table:
    setting, saving = plan.setting, projection.estimate_saving(plan)
    n, cohort = setting.clients, setting.participation
    title = f"{cohort.population} clients, {n} a round, {cohort.rounds} rounds, {setting.dim} coordinates"
    rows = {
        "epsilon, delta": f"{plan.epsilon:.4g}, {setting.given_delta:.4g}",
        **({"part of delta for failing graphs and draws": f"{setting.failure:.3g}"} if setting.failure else {}),
        "noise multiplier: noise over what one client can change": f"{plan.multiplier:.4f}",
        "noise on the sum, over the clip bound": f"{plan.sigma / setting.clip:.4f}",
        "noise on the sum, relative to a trusted server that adds it": _format_factor(plan.times_trusted),
        "the same under local differential privacy": _format_factor(plan.times_trusted and math.sqrt(n)),
        "projection": saving.description if saving else projection.OFF,
        "signal-to-noise per round, at most": f"{plan.signal_to_noise:.3g}",
        "signal-to-noise, unrelated updates": f"{plan.signal_to_noise / math.sqrt(n):.3g}",
        "bits per coordinate": str(plan.bits),
        "bytes per client and round": f"{plan.bytes_per_client:,}",
        "integers (rounding steps) per 1.0 of an update": f"{plan.scale:.6g}",
        "coordinates, rotated together and in all": f"{setting.block:,} and {setting.padded:,}",
        "squared norm that one client can change, in steps": f"{plan.sensitivity.squared:,}",
        "variance of the noise on the sum, in steps": f"{float(plan.variance):,.6f}",
        "variance of the noise of one client, in steps": _describe_components(plan),
        "clients of a round that may drop out": f"{setting.T} of {n}",
        "clients whose answers a round needs": str(setting.t),
        "colluders among all clients": str(question.colluders),
        "colluders in a round, at most": question.describe_colluders(setting.colluders),
        "noise on the sum with these colluders, over that with none": _format_factor(math.sqrt(setting.kappa)),
        "rounds of one client, at most": str(plan.cap),
    }
    if bit := plan.find_further(CLIPPING_BIT):
        rows["noise multiplier of the count that moves the clip bound"] = f"{bit.multiplier:.4f}"
        rows["error of the share of norms below the clip bound"] = f"{bit_error(bit, n, setting.kappa):.4f}"
    return facts_table(rows, title)


def _format_factor(times: float | None) -> str:
    return "none" if times is None else f"{times:.4f}"


def _describe_components(plan: Plan) -> str:
    """Return in words the variances of a client's base noise and of its removable noise."""
    base, removable = (
        ", ".join(f"{float(variance):.6g}" for variance in variances) or "nothing"
        for variances in (plan.noise.base, plan.noise.removable)
    )
    return f"{base} that stays; {removable} that is removed once the dropouts are known"


def _dropout_table(plan: Plan, outlook: Iterable[DropoutForecast], question: NoiseQuestion) -> Table:
    """Return a table with a row for each dropout rate, which is assumed for all rounds.

    A row has the epsilon of three strategies, and a tolerance and threshold with which rounds succeed at this rate.
    """
    return make_table(
        *("dropout", "dropped", "orig", "conservative", "XNoise", "tolerance", "threshold"),
        rows=(
            (
                f"{float(row.rate):.0%}",
                str(row.dropped),
                *(_format_epsilon(getattr(row, name)) for name in SCHEMES),
                str(row.dropped),
                question.needs(plan, row.dropped).threshold_word,
            )
            for row in outlook
        ),
        title="epsilon if clients drop out",
        caption=(
            "orig: clients add even shares; conservative: even shares that are enough if "
            f"{plan.setting.T} drop out; XNoise: the same shares, and the excess is removed. "
            "With more dropouts there is no output. tolerance, threshold: settings with which rounds survive this "
            "dropout before the upload (protocol.tolerance, protocol.threshold; in assisted rounds n_min)"
        ),
    )


def _format_epsilon(epsilon: float | None) -> str:
    return "no output" if epsilon is None else f"{epsilon:.2f}"


def _plan_fields(plan: Plan, outlook: Iterable[DropoutForecast], question: NoiseQuestion) -> dict[str, object]:
    """Return the plan and its epsilon by dropout rate as JSON fields; an infinite or missing epsilon is None."""
    setting, saving, bit = plan.setting, projection.estimate_saving(plan), plan.find_further(CLIPPING_BIT)
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
        "all_colluders": question.colluders,
        "colluders_one_draw": question.one_draw,
        "colluders_noise": math.sqrt(setting.kappa),
        "participation_cap": plan.cap,
        "clipping_bit_multiplier": bit and bit.multiplier,
        "fraction_below_error": bit and bit_error(bit, setting.clients, setting.kappa),
        "dropout": [
            {
                "rate": float(row.rate),
                "dropped": row.dropped,
                **{name: finite(getattr(row, name)) for name in SCHEMES},
                "tolerance": row.dropped,
                "threshold": question.needs(plan, row.dropped).threshold,
            }
            for row in outlook
        ],
        "terms": setting.participation.terms(),
    }
