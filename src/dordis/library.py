"""The functions of the library: run a configuration, train a model on data in memory, load a run or a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy.typing as npt

from dordis.apps.learning.app import Client, Server, average_parameters, record_learner
from dordis.apps.learning.networks import Inputs
from dordis.apps.learning.settings import Settings, read_settings
from dordis.apps.learning.task import as_model, gather
from dordis.apps.learning.trained_model import SAVED_MODEL, TrainedModel, read_model
from dordis.apps.tables.description import Table
from dordis.config import reading
from dordis.config.schema import App, Config, Federation, Privacy, Protocol, Simulation
from dordis.dropout_models import DropoutModel, NoDropout, Rate
from dordis.errors import HopelessPlan, InputError, LedgerDamaged, NothingTrained, RoundFailed
from dordis.ledger.verification import check_evidence, check_model
from dordis.privacy.advice import check_prospects, describe_prospects
from dordis.privacy.noise_strategies import NoNoise
from dordis.protocols import summing_protocol
from dordis.records import run_records
from dordis.records.run_records import CONFIG, MODEL, read_state
from dordis.rounds.app import AppClient, Task
from dordis.runs.coordinator import FinishedRound
from dordis.runs.job import declared_client, plan_charge
from dordis.runs.run import Run
from dordis.simulation.run import SimulatedJob, job_with_app, prepare

OBJECTS = "dordis.train"
"""Value of `app.server` and `app.client` in the configuration of a run whose application was constructed in Python."""
ORIGIN = "dordis_run"
"""Name of the attribute of a trained torch module that stores the directory of the run that trained the module."""
LARGEST_COHORT = 1000
"""Largest number of clients of a round that `train` chooses if `per_round` is not given."""
LARGEST_FULL = 100
"""Largest number of clients of a round for which `train` sends every message if `fidelity` is not given."""

Mode = Literal["malicious", "semi-honest"]
Fidelity = Literal["full", "ideal"]
Unit = Literal["client", "record"]
Dropout = float | DropoutModel
OnRound = Callable[[FinishedRound], None]


@dataclass(frozen=True, eq=False)
class RunResult:
    """Outcome of a run; the complete records are in its directory, `path`."""

    path: Path
    model: Any = field(repr=False)
    """Result of the application: a trained torch module, parameters, or a mean; None if it returns no result."""
    epsilon: float | None
    """The stated epsilon, which may be published: the epsilon spent if the run ended as planned or by its budget rule,
    otherwise the larger of budget and epsilon spent.  None if the noise proves no epsilon, or if there is a `problem`.
    """
    delta: float
    history: tuple[dict[str, float], ...] = field(repr=False)
    """For each round: its number, the application's metrics, and the epsilon spent so far."""
    stopped: str
    """Why the run ended: `rounds` (all), `budget` (spent), `failed` or `interrupted`; `running`: no end is recorded."""
    fidelity: str
    problem: str = ""
    """Why no epsilon can be stated: the ledger was altered or lost.  Empty if the ledger is intact."""
    unit: str = ""
    """Description of the unit of privacy, such as "clients = 60 hospitals, from the column hospital"."""
    spent: float | None = None
    """Epsilon spent by the client that has spent most. Publish `epsilon`, which may be larger."""
    run_as: str = ""
    """How the run was executed.  A simulation protects nobody: its epsilon is what the same deployment would have."""
    verdict: str = ""
    """Verdict on the plan: what can be learnt despite its noise; empty for a run that `dordis.load` read."""
    trained: TrainedModel | None = field(default=None, repr=False)
    """The trained model with its preprocessing, if the run trained one."""

    @property
    def metrics(self) -> dict[str, float]:
        """Return the application's metrics after the last round; empty if no round was finished."""
        last = self.history[-1] if self.history else {}
        return {name: value for name, value in last.items() if name not in ("round", "epsilon")}

    def predict(self, rows: Any) -> npt.NDArray[Any]:
        """Return predictions for raw rows: a DataFrame, a mapping of columns, a path, or an array of model inputs."""
        return self._trained().predict(rows)

    def save(self, path: str | Path) -> Path:
        """Write the model with its preprocessing to one file, which `dordis.load` reads; return its path."""
        return self._trained().save(path)

    def export(self, path: str | Path, example: Any = None) -> Path:
        """Write the model as ONNX if `path` ends with .onnx, else by torch.export, and return the path of the file.

        The file contains the preprocessing of a table, and a description of its columns as JSON
        (`dordis.apps.learning.trained_model`).  For a torch module that was trained on arrays, pass some inputs as
        `example`.
        """
        return self._trained().export(path, example)

    def _trained(self) -> TrainedModel:
        if self.trained is None:
            raise InputError(f"the run at {self.path} trained no model, so it cannot predict, save or export")
        return self.trained

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report into the directory `path`, by default the run's; return the path of the page."""
        from dordis.report.page import write_report

        return write_report([self.path], None if path is None else Path(path))


def run(
    config: Any = None,
    *,
    ledger: str | Path | None = None,
    budget: float | None = None,
    accept_hopeless: bool = False,
    on_round: OnRound | None = None,
) -> RunResult:
    """Run a configuration and return the result: `config` is a `Config`, a dictionary of settings, or the path of a
    TOML file; None is the default configuration.

    Raise `HopelessPlan` before any epsilon is spent if the noise hides nearly everything that could be learnt, unless
    `accept_hopeless` is set.  `on_round` is called with every finished round.  `ledger` is a file to which all runs and
    queries over the same data are charged; `budget` is the epsilon that they may spend together, fixed when the file is
    created.

    >>> import dordis, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"output": folder, "federation": {"rounds": 1}, "simulation": {"fidelity": "ideal"}}
    ...     result = dordis.run(settings)
    >>> result.stopped, len(result.history), result.epsilon < 6
    ('rounds', 1, True)
    """
    given = as_config(config)
    return _complete(prepare(given), given, on_round, accept_hopeless, ledger, budget)


def as_config(config: Any) -> Config:
    """Return a `Config` unchanged, or the validated `Config` of a dictionary or a file; the default one for None."""
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return reading.config_from_settings(dict(config))
    if not isinstance(config, str | Path | None):
        raise InputError(f"a configuration is a Config, a dictionary or a path, not {type(config).__name__}")
    return reading.read_config(None if config is None else Path(config))


def train(
    model: Any,
    data: Any,
    *,
    epsilon: float | None,
    rounds: int = 20,
    table: Table | None = None,
    test: Any = None,
    delta: float | None = None,
    clip: float = 1.0,
    per_round: int | None = None,
    dropout: Dropout = 0.0,
    mode: Mode = "malicious",
    fidelity: Fidelity | None = None,
    unit: Unit = "client",
    record: str = "",
    records: int = 0,
    sampling: float = 1.0,
    colluders: int | None = None,
    protocol: str = "secagg",
    seed: int = 0,
    name: str = "train",
    output: str | Path = "runs",
    ledger: str | Path | None = None,
    budget: float | None = None,
    accept_hopeless: bool = False,
    on_round: OnRound | None = None,
    **training: Any,
) -> RunResult:
    """Train a model with (epsilon, delta)-differential privacy for each client, even if clients drop out.

    `model` is a torch module, a `Model` of your own, or the name of a built-in one: "softmax" for classes, "linear" for
    numbers, "mlp" for both, and with torch "cnn", "resnet18" or "vgg19" for images.

    `data` is a table with its public description, `table` (see `dordis.Table`): a DataFrame, a mapping of columns, or
    the path of a CSV or Parquet file.  The ranges and categories of `table` scale and encode the rows; they are never
    computed from the rows.  Or `data` is a list or a mapping of clients, each a pair (x, y) of arrays, a torch data set
    or a data loader.  `test` is public: a table, or as the data of one client.  Metrics on `test` have no noise; rows
    of a test table that belong to clients are left out.

    Without `per_round`, a round has all clients, but at most 1,000.  By default, rounds of up to 100 clients send every
    message of the protocol (`fidelity` "full"); for larger rounds only the noisy sum is computed ("ideal").  With
    epsilon None there is no noise and no privacy.  `dropout` is the fraction of clients that leave each round, or a
    dropout model; `mode` is the kind of server, "malicious" or "semi-honest".  `on_round` is called after each round.
    `training` are further settings of `dordis.apps.learning.Settings`, such as epochs, batch, lr, optimiser and
    class_weights; for tables the defaults need no tuning.

    `ledger` is a file to which all runs and queries over the same data are charged; `budget` is the epsilon that they
    may spend together, fixed when the file is created.  A run that would exceed this budget raises `BudgetExceeded`.
    Raise `NothingTrained` if no round was finished, and `HopelessPlan`, before any epsilon is spent, if the noise hides
    nearly everything that could be learnt; `accept_hopeless` trains all the same.

    `protocol` is "secagg", "secagg+" or "assisted": in assisted rounds every client sends one message, clients arrive
    in any order, and `per_round` is the largest number of clients of a round.  `colluders` is how many of all clients
    may collude with the server: by default 1.  It must be given for assisted rounds against a malicious server.

    With `unit="record"` each record is protected instead of each client: every round is one step of DP-SGD with
    gradients of single records, each sampled with the probability `sampling`.  `records` is a public bound on the
    number of records of one client.  A record is a row; if `record` names a column of ids, a record is all rows of a
    client with the same id.  The learning rate of DP-SGD is `lr` of the `optimiser`.

    >>> import dordis, tempfile, numpy as np
    >>> rng = np.random.default_rng(1)
    >>> ages = rng.uniform(20, 80, 300)
    >>> rows = {"age": ages, "ill": np.where(ages + rng.normal(0, 5, 300) > 50, "yes", "no")}
    >>> table = dordis.Table(label="ill", ranges={"age": (0, 100)}, categories={"ill": ("no", "yes")})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = dordis.train("softmax", rows, table=table, epsilon=6, output=folder)
    >>> result.predict({"age": [25, 75]}).tolist(), result.epsilon <= 6
    (['no', 'yes'], True)
    """
    settings = read_settings(training, "")
    if unit not in ("client", "record"):
        raise InputError(f'unit is "client" or "record", not {unit!r}')
    if unit == "record" and epsilon is None:
        raise InputError('with unit="record" there is no run without noise: pass an epsilon, or leave out the unit')
    if before := getattr(model, ORIGIN, ""):
        warnings.warn(
            f"the model was trained privately in the run at {before}: clients in both runs spend the epsilon of both; "
            "charge them to one ledger, or add them up with dordis ledger sum",
            stacklevel=2,
        )
    task = Task({}, 0, seed, by_record=unit == "record", record=record)
    common = gather(model, data, test, table, settings, training.keys(), task)
    cohort = min(common.clients, LARGEST_COHORT) if per_round is None else per_round
    stored = msgspec.structs.replace(common.settings, table=table)
    privacy = Privacy(clip=clip, delta=delta, noise=NoNoise()) if epsilon is None else Privacy(epsilon, delta, clip)
    if unit == "record":
        privacy = msgspec.structs.replace(privacy, unit=unit, record=record, records=records, sampling=sampling)
    arrival: Literal["invited", "open"] = "invited" if summing_protocol(protocol).has_cohort else "open"
    config = Config(
        name=name,
        output=str(output),
        app=App(OBJECTS, OBJECTS, msgspec.to_builtins(stored)),
        federation=Federation(common.clients, cohort, rounds, arrival=arrival),
        privacy=privacy,
        protocol=Protocol(protocol, mode, colluders=colluders),
        simulation=Simulation(
            fidelity or ("full" if cohort <= LARGEST_FULL else "ideal"), seed, _dropout_model(dropout)
        ),
    )
    checked = reading.validate_settings(msgspec.to_builtins(config))
    server = Server.from_learning_task(common)
    learners: dict[int, AppClient] = {}

    def construct(u: int) -> AppClient:
        if unit == "client":
            return Client.from_learning_task(common, u - 1)
        if u not in learners:
            learners[u] = declared_client(record_learner(common, u - 1), checked)
        return learners[u]

    job = job_with_app(checked, server, construct)
    return _complete(job, checked, on_round, accept_hopeless, ledger, budget)


def _dropout_model(dropout: float | DropoutModel) -> DropoutModel:
    """Return the dropout model; a number is the fraction of clients that leave a round, each at a random stage."""
    if isinstance(dropout, int | float):
        return Rate(dropout) if dropout else NoDropout()
    return dropout


def load(path: str | Path, model: Any = None) -> Any:
    """Return the `RunResult` of a run's directory, or the `TrainedModel` of a file that `RunResult.save` wrote.

    The class of a model of your own is neither in a file nor in a run of `dordis.train`: pass the `model` again.

    >>> import dordis, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"output": folder, "federation": {"rounds": 1}, "simulation": {"fidelity": "ideal"}}
    ...     result = dordis.run(settings)
    ...     again = dordis.load(result.path)
    >>> bool((again.model == result.model).all()), again.history == result.history
    (True, True)
    """
    where = Path(path)
    own = None if model is None or isinstance(model, str) else as_model(model, Inputs((), 0), Settings(), 0)
    if where.is_file():
        return read_model(where, own)
    if not where.is_dir():
        raise InputError(f"there is no run and no saved model at {where}")
    stored = run_records.load_run(where)
    config = reading.read_config(where / CONFIG)
    if stored.result is not None:
        check_model(stored)
    state = read_state(where / MODEL)
    if config.app.server == OBJECTS:
        return _load_objects(where, state, own, config.app.options.get("target", Settings().target))
    app = prepare(config).job.app
    if state:
        app.restore(state)
    return _read_result(where, app.result(), trained=_trained_model(app))


def _load_objects(path: Path, state: Mapping[str, Any], model: Any, target: str) -> RunResult:
    """Return the result of a run of `train`, whose server had stored `state` (empty: no round was finished).

    `model` is the caller's model of that run, None for a built-in one; `target` is the setting of the application.
    """
    if (path / SAVED_MODEL).is_file():
        trained = read_model(path / SAVED_MODEL, model)
        return _read_result(path, trained.module, trained=trained)
    if not state:
        return _read_result(path, None)
    trained = TrainedModel.from_run(path, model, average_parameters(state), target)
    return _read_result(path, trained.module, trained=trained if model is not None else None)


def _trained_model(app: Any) -> TrainedModel | None:
    return app.trained_model() if isinstance(app, Server) else None


def _complete(
    job: SimulatedJob,
    config: Config,
    on_round: OnRound | None,
    accept_hopeless: bool,
    ledger: str | Path | None = None,
    budget: float | None = None,
) -> RunResult:
    """Run all rounds, charge them to `ledger` if given, show warnings, return the result; refuse a hopeless plan."""
    plan, app = job.job.design.plan, job.job.app
    for text in job.job.warnings:
        warnings.warn(text, stacklevel=3)
    if plan is not None and not accept_hopeless:
        try:
            check_prospects(plan)
        except HopelessPlan as error:
            error.add_note("Pass accept_hopeless=True to run it all the same.")
            raise
    charged = plan_charge(job.job, ledger, budget)
    under_way: Run = job.start(Path(config.output), reading.config_to_toml(config))
    if charged is not None:
        charged.start(under_way.records.id, under_way.records.path)

    def tell(finished: FinishedRound) -> None:
        for text in app.concerns():
            warnings.warn(f"round {finished.record.number}: {text}", stacklevel=4)
        if on_round is not None:
            on_round(finished)

    try:
        under_way.complete(told=tell)
    except RoundFailed as error:
        if not under_way.done:
            raise NothingTrained(str(error), under_way.records.path) from error
        raise
    if not under_way.done:
        raise NothingTrained(str(under_way.over_budget), under_way.records.path)
    if charged is not None:
        charged.settle(under_way.records.id, under_way.records.path)
    said = "" if plan is None else describe_prospects(plan)
    return _read_result(under_way.records.path, app.result(), said, _trained_model(app))


def _read_result(path: Path, model: Any, verdict: str = "", trained: TrainedModel | None = None) -> RunResult:
    stored, problem = run_records.load_run(path), ""
    try:
        summary = check_evidence(stored)
    except LedgerDamaged as error:
        summary, problem = None, str(error)
    epsilons = {} if summary is None else {record.number: record.epsilon for record in stored.rounds}
    history = tuple(
        {"round": float(line.number), **line.values}
        | ({} if (epsilon := epsilons.get(line.number)) is None else {"epsilon": epsilon})
        for line in stored.metrics
    )
    ended = stored.result
    if summary is not None and hasattr(model, "state_dict"):
        setattr(model, ORIGIN, str(path))
    return RunResult(
        path=path,
        model=model,
        epsilon=None if summary is None else summary.stated.epsilon,
        spent=None if summary is None else summary.stated.spent,
        delta=stored.manifest.plan.delta,
        history=history,
        stopped="running" if ended is None else ended.stopped,
        fidelity=stored.manifest.fidelity,
        problem=problem,
        unit=stored.manifest.unit,
        run_as=stored.manifest.how,
        verdict=verdict,
        trained=trained,
    )
