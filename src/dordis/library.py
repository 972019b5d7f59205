"""What a person writes: run a configuration, train a model on data at hand, load what a run came to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dordis.apps.learning import objects
from dordis.apps.learning.app import Client, Server, learnt
from dordis.apps.learning.networks import Inputs
from dordis.apps.learning.settings import Settings
from dordis.errors import InputError, LedgerDamaged
from dordis.federation import records as recording
from dordis.federation.checkpoint import read_state
from dordis.federation.config import App, Federation, Privacy, Protocol
from dordis.federation.coordinator import Finished
from dordis.federation.evidence import check_evidence, check_model
from dordis.federation.records import CONFIG, MODEL
from dordis.federation.run import Run
from dordis.simulation import reading
from dordis.simulation.availability import Never, Rate
from dordis.simulation.config import Config, Simulation
from dordis.simulation.run import SimulatedJob, prepare, simulated

if TYPE_CHECKING:
    from dordis.apps.learning.models import Model

OBJECTS = "dordis.train"
"""Stands in a configuration for an application that was made of objects."""
MOST_A_ROUND = 100

OnRound = Callable[[Finished], None]


def ignore(finished: Finished) -> None:
    """Do nothing."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run came to; everything else is in its directory, `path`."""

    path: Path
    model: Any = field(repr=False)
    """What the application made: a trained module or parameters, a mean; None if nothing."""
    epsilon: float | None
    """What is stated of the run: what was spent, or the budget where the run ended early; None where nothing is proved,
    or there is a `problem`.
    """
    delta: float
    history: tuple[dict[str, float], ...] = field(repr=False)
    """Round by round: its number, the application's metrics, epsilon so far."""
    stopped: str
    """Why it ended: `rounds` (all done), `budget`, `failed`, `interrupted`, or `running`."""
    fidelity: str
    problem: str = ""
    """Why no epsilon can be stated although there should be one: the ledger was altered or lost."""
    unit: str = ""
    """What one client is, whom privacy protects as a whole: "clients = 60 hospitals, from the column hospital"."""
    spent: float | None = None
    """What the client that has spent most has spent: not to be stated where `epsilon` is more."""
    run_as: str = ""
    """What was run: a simulation protects nobody, and its epsilon is what a deployment like it would have."""

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last round; none if no round was finished."""
        last = self.history[-1] if self.history else {}
        return {name: value for name, value in last.items() if name not in ("round", "epsilon")}

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report to a directory, the run's own if none is given; return where it is."""
        from dordis.report.files import write

        return write([self.path], None if path is None else Path(path))


def run(config: "Config | Mapping[str, Any] | str | Path | None" = None, *, on_round: OnRound = ignore) -> RunResult:
    """Run a configuration: a `Config`, a dictionary of settings, or the path of a TOML file; the default if None.

    `on_round` is called with every finished round.

    >>> import dordis, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"output": folder, "federation": {"rounds": 1}, "simulation": {"fidelity": "ideal"}}
    ...     result = dordis.run(settings)
    >>> result.stopped, len(result.history), result.epsilon < 6
    ('rounds', 1, True)
    """
    given = as_config(config)
    return _completed(prepare(given), given, on_round)


def as_config(config: "Config | Mapping[str, Any] | str | Path | None") -> Config:
    """Return the configuration that is meant, every key checked."""
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return reading.over_defaults(dict(config))
    if not isinstance(config, str | Path | None):
        raise InputError(f"a configuration is a Config, a dictionary or a path, not {type(config).__name__}")
    return reading.read(None if config is None else Path(config))


def train(
    model: "str | Model | Any",
    clients: Any,
    *,
    epsilon: float,
    rounds: int,
    test: Any = None,
    client: str | None = None,
    label: str | None = None,
    delta: float | None = None,
    clip: float = 1.0,
    per_round: int | None = None,
    dropout: float = 0.0,
    mode: Literal["malicious", "semi-honest"] = "malicious",
    fidelity: Literal["full", "ideal"] = "full",
    seed: int = 0,
    name: str = "train",
    output: str | Path = "runs",
    on_round: OnRound = ignore,
    **training: Any,
) -> RunResult:
    """Train a model over clients, each of whom gets (epsilon, delta)-differential privacy, whoever drops out.

    `model` is a torch module, a `Model` of your own, or the name of one of ours: "softmax", "mlp", "linear" for
    numbers (with target="regression"), with torch "cnn", "resnet18" or "vgg19" for images. `clients` is a list of
    pairs (x, y), a mapping of such pairs, or a DataFrame, in which `client` and `label` name two columns. `test`, if
    given, is public, a pair or a DataFrame; of a DataFrame with the column `client` the rows of clients are left out,
    since metrics have no noise. `training` are further settings of `dordis.apps.learning.Settings`, such
    as epochs, batch, lr, optimiser and average. All clients take part in every round, or 100 of them, unless
    `per_round` says otherwise.

    >>> import dordis, tempfile
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> labels = rng.integers(0, 2, (41, 20))
    >>> *clients, public = [(rng.normal(y[:, None] * 2.0 - 1.0, 1.0, (20, 3)), y) for y in labels]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = dordis.train(
    ...         "softmax", clients, test=public, epsilon=8, rounds=2, fidelity="ideal", output=folder
    ...     )
    >>> result.model.shape, result.epsilon <= 8
    ((8,), True)
    """
    settings = _settings(training)
    common = objects.gather(model, clients, test, client, label, settings, seed)
    population = common.clients
    config = Config(
        name=name,
        output=str(output),
        app=App(OBJECTS, OBJECTS, msgspec.to_builtins(settings)),
        federation=Federation(population, per_round or min(population, MOST_A_ROUND), rounds),
        privacy=Privacy(epsilon, delta, clip),
        protocol=Protocol(mode=mode),
        simulation=Simulation(fidelity, seed, Rate(dropout) if dropout else Never()),
    )
    checked = reading.config_of(msgspec.to_builtins(config))
    job = simulated(checked, Server.learning(common), lambda u: Client.learning(common, u - 1))
    return _completed(job, checked, on_round)


def _settings(training: Mapping[str, Any]) -> Settings:
    try:
        return msgspec.convert(dict(training), Settings)
    except msgspec.ValidationError as error:
        raise InputError(f"in the settings of the training: {error}") from None


def load(directory: str | Path, model: Any = None) -> RunResult:
    """Return what a run came to, from its directory.

    A run of `dordis.train` does not know the class of its model: pass the `model` again to get it trained, or take the
    parameters as they are.

    >>> import dordis, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"output": folder, "federation": {"rounds": 1}, "simulation": {"fidelity": "ideal"}}
    ...     result = dordis.run(settings)
    ...     again = dordis.load(result.path)
    >>> bool((again.model == result.model).all()), again.history == result.history
    (True, True)
    """
    path = Path(directory)
    config = reading.read(path / CONFIG)
    stored = recording.load(path)
    if stored.result is not None:
        check_model(stored)
    state = read_state(path / MODEL)
    if config.app.server == OBJECTS:
        parameters = learnt(state) if state else None
        return _result(path, parameters if model is None or parameters is None else as_trained(model, parameters))
    app = prepare(config).job.app
    if state:
        app.restore(state)
    return _result(path, app.result())


def as_trained(model: Any, parameters: Any) -> Any:
    """Return a model with parameters: its own class decides how that is handed over."""
    if isinstance(model, str):
        return parameters
    return objects.as_model(model, Inputs((), 0), Settings(), 0).trained(parameters)


def _completed(job: SimulatedJob, config: Config, on_round: OnRound) -> RunResult:
    under_way: Run = job.start(Path(config.output), reading.written(config))
    under_way.complete(told=on_round)
    return _result(under_way.records.path, job.job.app.result())


def _result(path: Path, model: Any) -> RunResult:
    stored, problem = recording.load(path), ""
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
    )
