"""Figures 3, 4 and 6 and table 1, drawn from the code that runs rounds."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from dordis.pipeline.planner import group_stages, schedule_stages, step_name
from dordis.privacy.xnoise_components import NoisePlan, Scheme
from dordis.protocol import Resource
from dordis.report.charts import BarChart, GanttChart, Series, Stretch
from reproduce.paper import Content, Grid, Results, Section, Verdict, no_jobs
from reproduce.paper.workflow import chunk_steps

CLIENTS, TOLERANCE = 4, 2
"""The paper's example: |U| = 4, T = 2, target noise 1."""
COMPONENTS = (Fraction(1, 4), Fraction(1, 12), Fraction(1, 6))
FIVE = ("c-comp", "comm", "s-comp", "comm", "c-comp")
DRAWN = "The code of dordis computes and draws what this section shows; no round is run or measured."
DRAWN_3 = (
    f"{DRAWN} After some clients have dropped out, the excess noise can be removed from the sum in two ways. With "
    "decomposition, the way of XNoise, a survivor discloses the seeds of noise that it added before the upload. With "
    "rebasing, a survivor sends the difference between new noise and the noise that it added."
)
DRAWN_4 = (
    f"{DRAWN} In the paper's example a round has four clients (|U| = 4), T = 2, and the noise planned for the sum has "
    "variance 1. Each client adds three components of noise, of which the first is never removed. The table has the "
    "variances of the components that a survivor removes."
)
DRAWN_6 = f"{DRAWN} Three chunks go through the paper's five stages, each of which takes one second."
DRAWN_1 = (
    f"{DRAWN} A stage is a sequence of steps on one resource: c-comp is the computation of the clients, s-comp the "
    "computation of the server, comm communication (in dordis: the upload), and comm-down the download."
)
UNIT = Fraction(2**20)
"""The planned variance of the example, so large that rounding its shares to multiples of 2^-20 does not matter."""


def example() -> NoisePlan:
    """Return the noise plan of the paper's example."""
    return NoisePlan(Scheme.EXACT, CLIENTS, TOLERANCE, 0, UNIT)


def near(value: Fraction) -> Fraction:
    """Return a share of the planned variance as a simple fraction, without the rounding to the noise sampler's grid."""
    return (value / UNIT).limit_denominator(1000)


def show_figure_3(results: Results) -> Content:
    """Compare what rebasing and decomposition send to remove noise, for a model of a million weights."""
    from dordis.kernels.ring import packed_size

    vector, plan = packed_size(2**20, 20), example()
    seeds = len(plan.removable)
    rows = [
        (
            "rebasing",
            "the new noise minus the old noise, a whole vector",
            f"{vector:,}",
            "no removal: only the survivor knows the vector",
        ),
        (
            "decomposition",
            f"at most {seeds} seeds of 32 bytes",
            f"{32 * seeds:,}",
            "the seeds are rebuilt from shares of other clients",
        ),
    ]
    verdict = Verdict.decide(
        "with decomposition a survivor sends seeds, with rebasing a vector as long as the model",
        "yes",
        f"{32 * seeds:,} and {vector:,} bytes for 2^20 weights",
        32 * seeds < vector,
        "seeds are longer than the vector",
    )
    heads = ("approach", "a survivor sends", "bytes", "if the survivor drops out first")
    charts = [
        BarChart(
            "Figure 3: bytes that a survivor sends, 2^20 weights",
            "",
            "bytes",
            (Series("bytes", (float(vector), float(32 * seeds))),),
            categories=("rebasing", "decomposition"),
        )
    ]
    remark = "dordis simulates rebasing for its cost only: with `privacy.noise.kind = 'rebasing'` no epsilon is proved."
    return Content([verdict], [Grid("two add-then-remove approaches", heads, rows)], charts, [remark])


def show_figure_4(results: Results) -> Content:
    """Draw the components of a client's noise, and the noise left in the sum after 0, 1 and 2 dropouts."""
    plan = example()
    shares = [near(share) for share in (*plan.base, *plan.removable)]
    rows, left = [], []
    for dropped in range(TOLERANCE + 1):
        survivors = range(CLIENTS - dropped)
        due = plan.due_components(survivors, b"")
        removed = sorted({k for components in due.values() for k in components})
        removed_share = sum((shares[k + 1] for k in removed), Fraction(0))
        left.append(near(plan.variance_left(survivors, b"")))
        rows.append(
            (str(dropped), " + ".join(str(shares[k + 1]) for k in removed) or "0", str(removed_share), str(left[-1]))
        )
    ours = ", ".join(map(str, shares))
    verdicts = [
        Verdict.decide(
            "variances of the components of each client",
            "1/4, 1/12, 1/6",
            ours,
            tuple(shares) == COMPONENTS,
            "of rounding",
        ),
        Verdict.decide(
            "variance left in the sum with 0, 1 and 2 dropouts",
            "1, 1, 1",
            ", ".join(map(str, left)),
            left == [1, 1, 1],
            "the wrong components are removed",
        ),
    ]
    names = [f"n_{k}" for k in range(len(shares))]
    series = tuple(
        Series(name, tuple(float(share) if k <= dropped else 0.0 for dropped in range(TOLERANCE + 1)))
        for k, (name, share) in enumerate(zip(names, shares, strict=True))
    )
    categories = ("no client drops", "one drops", "two drop")
    chart = BarChart("Figure 4: noise that a survivor leaves in the sum", "", "variance", series, categories=categories)
    heads = ("dropouts", "each survivor removes", "their sum", "left in the sum")
    return Content(verdicts, [Grid("variances", heads, rows)], [chart])


def show_table_1(results: Results) -> Content:
    """List the stages of a chunk in our engine, with their steps and resources."""
    stages = group_stages(chunk_steps())
    names = [stage.resource.value for stage in stages]
    rows = [
        (str(place), stage.resource.value, ", ".join(step_name(step) for step in stage.steps))
        for place, stage in enumerate(stages, 1)
    ]
    same = tuple(name.removesuffix("-down") for name in names) == FIVE
    verdict = Verdict.decide(
        "the workflow has five stages", ", ".join(FIVE), ", ".join(names), same, "steps are split otherwise"
    )
    remarks = (
        "Keys are generated and secrets shared once a round, before the pipeline (the paper's steps 2 and 3): their "
        "cost does not depend on the model.",
        "A link carries both directions at once. So dordis has a resource for each direction, where the paper has one "
        "for both.",
    )
    return Content([verdict], [Grid("stages of a chunk", ("stage", "resource", "steps"), rows)], (), remarks)


def show_figure_6(results: Results) -> Content:
    """Schedule three chunks through the paper's five stages, each of which takes a second."""
    resources = [Resource(name) for name in FIVE]
    schedule = schedule_stages(resources, [1.0] * len(FIVE), 3)
    work: dict[str, list[Stretch]] = {name: [] for name in dict.fromkeys(FIVE)}
    for slot in schedule.slots:
        work[slot.resource.value].append(Stretch(f"chunk {slot.chunk + 1}", slot.start, slot.end))
    series: tuple[Series[Stretch], ...] = tuple(Series(name, tuple(items)) for name, items in work.items())
    rows = tuple(f"chunk {c}" for c in (1, 2, 3))
    chart = GanttChart("Figure 6: three chunks in five stages of one second", "seconds", "", series, rows=rows)
    alone = all_exclusive(work)
    verdicts = [
        Verdict.decide(
            "a resource serves one chunk at a time", "yes", "yes" if alone else "no", alone, "slots overlap"
        ),
        Verdict.decide(
            "three chunks overlap: they take less than the 15 s of one chunk after the other",
            "yes",
            f"{schedule.completion:g} s",
            schedule.completion < 15,
            "none",
        ),
    ]
    return Content(verdicts, (), [chart])


def all_exclusive(work: dict[str, list[Stretch]]) -> bool:
    """Tell whether no resource has two slots that overlap."""
    ordered: Sequence[list[Stretch]] = [sorted(items, key=lambda slot: slot.start) for items in work.values()]
    return all(a.end <= b.start for items in ordered for a, b in pairwise(items))


SECTIONS = (
    Section("figure 3", "Two add-then-remove approaches", DRAWN_3, no_jobs, show_figure_3),
    Section("figure 4", "Noise decomposition, precisely", DRAWN_4, no_jobs, show_figure_4),
    Section("table 1", "Stages of the workflow", DRAWN_1, no_jobs, show_table_1),
    Section("figure 6", "Pipeline schedule of three chunks", DRAWN_6, no_jobs, show_figure_6),
)
