"""Table 2 and figure 9: accuracy and perplexity of Orig and XNoise by dropout rate, from real training runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

from dordis.config.reading import read_config
from dordis.errors import InputError
from dordis.privacy.xnoise_components import Scheme
from dordis.report.charts import LineChart, Series
from reproduce.paper import SMALL, Content, Grid, Job, Results, Section, Verdict
from reproduce.paper.training import NOISES, dropout_keys, training_job
from reproduce.utility import PAPER, RATES

CURVE_RATE = 0.2
LOSS = 0.9
"""According to the paper, XNoise loses at most so many points of accuracy against Orig."""
CLOSE = 2
"""Largest difference in rounds to half of the progress that counts as equal: one seed shows no smaller one."""
BOTH = ("orig", "xnoise")
AT_ORIGS = "xnoise at orig's epsilon"


@dataclass(frozen=True)
class StandIn:
    """A task of the paper, and the preset in its place, with a model that learns under the noise of epsilon = 6."""

    task: str
    preset: str
    what: str
    keys: tuple[str, ...]
    seeds: tuple[int, ...]
    metric: str = "accuracy"

    @property
    def per_round(self) -> int:
        """Return the clients of a round: 100 in all three presets."""
        return 100

    @property
    def is_accuracy(self) -> bool:
        """Tell whether more is better."""
        return self.metric == "accuracy"

    def format_value(self, value: float) -> str:
        """Format an accuracy in percent, or a perplexity."""
        return f"{100 * value:.1f}" if self.is_accuracy else f"{value:.0f}"


TASKS = (
    StandIn(
        "FEMNIST",
        "mnist-writers",
        "a softmax model on public features of the images of MNIST ({preset}). Each of the 539 writers is a client.",
        ("federation.rounds=10",),
        (0, 1, 2),
    ),
    StandIn(
        "CIFAR-10",
        "cifar10-features",
        "a softmax model on public features of the same images ({preset}). The images are divided among 1,000 clients "
        "with random mixes of labels (LDA(1)).",
        ("federation.rounds=10", "app.options.partition.kind=lda"),
        (0, 1, 2),
    ),
    StandIn(
        "Reddit",
        "chat",
        "a language model on the messages of a chat, by counting words ({preset}). Each person is a client.",
        ("federation.rounds=10", "app.options.words=5"),
        (0, 1, 2),
        "perplexity_user",
    ),
)
SEMI_HONEST = ("protocol.mode=semi-honest", "protocol.colluders=0", "protocol.threshold=50", "protocol.tolerance=50")
"""The paper's threat model: T = t = n/2, no colluders."""
TRAINED = (
    "Real training was done at ideal fidelity (no masks, noise of the same distribution). The data are MNIST divided "
    "among its writers (for the paper's FEMNIST), CIFAR-10 divided among 1,000 clients, and chat messages (for "
    "Reddit). Small models take the place of the paper's networks, because they can learn in spite of the noise that "
    "epsilon requires. For images this is a softmax model on public features (numbers that a fixed public function "
    "computes from each image), for texts a language model that is computed from noisy counts of words. As in the "
    "paper, clients drop out before the upload, T = t = n/2, and there are no colluders. The runs are planned for "
    "epsilon = 6 at delta = 1e-5, which holds for a client over all rounds in which it takes part. Every run has 10 "
    "rounds."
)
TRAINED_2 = (
    f"{TRAINED} The loss of XNoise against Orig is in points of accuracy or in percent of perplexity: its mean over "
    "seeds, and the standard error (se) of this mean."
)


def label(task: StandIn, noise: str, rate: float, seed: int) -> str:
    """Name a run."""
    return f"utility {task.task} {noise} {rate:g} seed {seed}"


def job(task: StandIn, noise: str, rate: float, seed: int, epsilon: float = 6.0, name: str = "") -> Job:
    """Return one training run."""
    keys = [*task.keys, *SEMI_HONEST, *NOISES[noise], *dropout_keys(rate), f"simulation.seed={seed}"]
    return training_job(
        label(task, name or noise, rate, seed), task.preset, [*keys, f"privacy.epsilon={epsilon}"], task.metric
    )


@cache
def overspent(task: StandIn, rate: float) -> float:
    """Compute the epsilon that Orig spends at a dropout rate from the plan of its run, rounded to three decimals."""
    from dordis.privacy.accounting import ParticipationSchedule
    from dordis.privacy.planning import plan
    from dordis.privacy.setting import Setting

    keys = [*task.keys, *SEMI_HONEST, *NOISES["orig"], *dropout_keys(rate)]
    federation = read_config(preset=task.preset, keys=keys).federation
    schedule = ParticipationSchedule(federation.clients, federation.per_round, federation.rounds)
    setting = Setting(schedule, dim=1000, delta=1e-5, scheme=Scheme.ORIG, threshold=50, tolerance=50, colluders=0)
    found = plan(setting, 6.0).epsilon_with_dropout(round(rate * federation.per_round), Scheme.ORIG)
    if found is None:
        raise InputError(f"{task.preset}: no round survives {rate:.0%} dropout")
    return round(found, 3)


def table_2_jobs(scale: str) -> Sequence[Job]:
    """Return the runs with Orig and XNoise at every rate and seed, without noise, and with XNoise at Orig's epsilon."""
    if scale != SMALL:
        return paper_jobs()
    # First what computes features of CIFAR-10, which other jobs read, beside jobs of other data.
    jobs = [job(task, "none", rate, 0) for rate in (0.0, RATES[-1]) for task in (TASKS[1], TASKS[0], TASKS[2])]
    jobs += [job(task, noise, rate, s) for task in TASKS for s in task.seeds for rate in RATES for noise in BOTH]
    worst = RATES[-1]
    return [
        *jobs,
        *(job(t, "xnoise", worst, s, overspent(t, worst), AT_ORIGS) for t in TASKS for s in t.seeds),
    ]


def paper_jobs() -> Sequence[Job]:
    """Return the runs of the presets with the paper's settings at every rate; they take days."""
    presets = {"FEMNIST": "paper-femnist", "CIFAR-10": "paper-cifar10", "Reddit": "paper-reddit"}
    return [
        training_job(
            label(task, noise, rate, s),
            presets[task.task],
            [*NOISES[noise], *dropout_keys(rate), f"simulation.seed={s}"],
            "accuracy" if task.is_accuracy else "perplexity",
        )
        for task in TASKS
        for s in task.seeds
        for rate in RATES
        for noise in BOTH
    ]


def figure_9_jobs(scale: str) -> Sequence[Job]:
    """Return the runs of table 2 at 20 % dropout: nothing is run twice."""
    return [job for job in table_2_jobs(scale) if f" {CURVE_RATE:g} seed 0" in job.label]


def last(results: Results, task: StandIn, noise: str, rate: float) -> list[float]:
    """Return the metric after the last round of the run with each seed."""
    names = (label(task, noise, rate, seed) for seed in task.seeds)
    return [results[name]["metric"][-1] for name in names if name in results]


def differences(results: Results, task: StandIn, rate: float, other: str = "xnoise") -> tuple[float, float]:
    """Return mean and standard error, over seeds, of XNoise's loss against Orig: points, or percent of perplexity."""
    ours, orig = last(results, task, other, rate), last(results, task, "orig", rate)
    pairs = zip(orig, ours, strict=True)
    lost = [100 * (a - b) if task.is_accuracy else 100 * (b / a - 1) for a, b in pairs]
    return fmean(lost), stdev(lost) / len(lost) ** 0.5 if len(lost) > 1 else float("nan")


def show_table_2(results: Results) -> Content:
    """Compare Orig and XNoise at every rate, and check the paper's statements on the difference."""
    verdicts, rows = [], []
    for task in TASKS:
        lost = {rate: differences(results, task, rate) for rate in RATES}
        verdicts += task_verdicts(results, task, lost)
        for rate in RATES:
            paper = PAPER[task.task]
            mean = [task.format_value(fmean(last(results, task, noise, rate))) for noise in BOTH]
            spent = [results[label(task, noise, rate, task.seeds[0])]["epsilon"][-1] for noise in BOTH]
            shown = (f"{paper[0][RATES.index(rate)]:g}", f"{paper[1][RATES.index(rate)]:g}", *mean)
            loss = f"{lost[rate][0]:+.2f} (se {lost[rate][1]:.2f})"
            rows.append((task.task, f"{rate:.0%}", *shown, loss, *(f"{value:.2f}" for value in spent)))
    heads = (
        "task",
        "dropout",
        "paper Orig",
        "paper XNoise",
        "our Orig",
        "our XNoise",
        "XNoise loses",
        "epsilon of Orig",
        "epsilon of XNoise",
    )
    remarks = [
        f"For the paper's task {task.task} we train {task.what.format(preset=f'preset `{task.preset}`')} The seeds are "
        f"{', '.join(map(str, task.seeds))}."
        for task in TASKS
    ]
    return Content(verdicts, [Grid("final accuracy in % or perplexity", heads, rows)], (), remarks)


def task_verdicts(results: Results, task: StandIn, lost: dict[float, tuple[float, float]]) -> list[Verdict]:
    """Check that XNoise loses at most 0.9 points, with its own epsilon and with the epsilon that Orig spends."""
    worst = RATES[-1]
    most = max(lost, key=lambda rate: lost[rate][0])
    reason = (
        f"at {worst:.0%} dropout Orig keeps only {1 - worst:g} of the noise variance that epsilon 6 requires, and "
        f"spends an epsilon of {overspent(task, worst):.2f}: Orig is better because it has less noise and protects less"
    )
    unit = "points" if task.is_accuracy else "% of perplexity"
    said = f"{task.task}: XNoise loses at most {LOSS} {unit} against Orig, at every dropout rate"
    ours = f"{lost[most][0]:.2f} (se {lost[most][1]:.2f}) at {most:.0%}"
    verdicts = [Verdict.decide(said, f"{LOSS}", ours, lost[most][0] <= LOSS, reason)]
    if last(results, task, AT_ORIGS, worst):
        mean, error = differences(results, task, worst, AT_ORIGS)
        verdicts.append(
            Verdict.decide(
                f"{task.task}: XNoise, planned for the epsilon that Orig spends at {worst:.0%} dropout, loses at most "
                f"{LOSS} {unit} or two standard errors",
                "no statement",
                f"{mean:.2f} (se {error:.2f}) {unit}",
                abs(mean) <= max(LOSS, 2 * error),
                "few seeds tell so little",
            )
        )
    for rate in (0.0, worst):
        if bare := last(results, task, "none", rate):
            value = task.format_value(bare[0])
            metric = "accuracy in %" if task.is_accuracy else "perplexity"
            said = f"{task.task}: {metric} without noise, at {rate:.0%} dropout"
            verdicts.append(Verdict(said, "no statement", value, "no claim of the paper"))
    return verdicts


def show_figure_9(results: Results) -> Content:
    """Chart Orig and XNoise round by round at 20 % dropout, and compare how fast they converge."""
    charts, verdicts = [], []
    for task in TASKS:
        factor = 100.0 if task.is_accuracy else 1.0
        curves = {noise: results[label(task, noise, CURVE_RATE, 0)]["metric"] for noise in BOTH}
        series = tuple(
            Series(noise, tuple((i, None if v is None else factor * v) for i, v in enumerate(values, 1)))
            for noise, values in curves.items()
        )
        unit = "accuracy, %" if task.is_accuracy else "perplexity"
        charts.append(LineChart(f"Figure 9: {task.task} ({task.preset}), 20 % dropout", "round", unit, series))
        halves = {noise: rounds_to_half(values, task.is_accuracy) for noise, values in curves.items()}
        ours = ", ".join(f"{noise} {count}" for noise, count in halves.items())
        close = abs(halves["orig"] - halves["xnoise"]) <= CLOSE
        said = (
            f"{task.task}: XNoise converges as fast as Orig: it goes half of the way from its first to its best value "
            f"in the same round, give or take {CLOSE}"
        )
        verdicts.append(Verdict.decide(said, "same", ours, close, "the noise of one seed decides"))
    return Content(verdicts, (), charts)


def rounds_to_half(values: Sequence[float | None], rises: bool) -> int:
    """Return the first round in which half of the way from the first value to the best was made."""
    known = [value for value in values if value is not None]
    best = max(known) if rises else min(known)
    middle = (known[0] + best) / 2
    return next(i for i, value in enumerate(known, 1) if (value >= middle if rises else value <= middle))


SECTIONS = (
    Section("table 2", "Final accuracy and perplexity of Orig and XNoise", TRAINED_2, table_2_jobs, show_table_2),
    Section("figure 9", "Round-to-accuracy, 20 % dropout (runs of table 2)", TRAINED, figure_9_jobs, show_figure_9),
)
