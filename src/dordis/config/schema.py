"""The schema of the configuration: all settings of a run and their defaults.

Privacy and performance are separate sections: no setting under `performance` changes a privacy guarantee.
"""

import os
from typing import Annotated, Any, Literal

import msgspec

from dordis.dropout_models import DropoutModel, Rate
from dordis.privacy.clipping import Quantile
from dordis.privacy.noise_strategies import AnyStrategy, XNoise
from dordis.records.manifest import ONE_PROCESS

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Above = Annotated[float, msgspec.Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the configuration; a key that the section does not define is an error."""


class App(Section, frozen=True):
    """The application that computes updates and uses their aggregates: two classes, and their options."""

    server: str = "dordis.apps.learning:Server"
    """Class of the server's side, a subclass of `AppServer`, as `package.module:Class`."""
    client: str = "dordis.apps.learning:Client"
    """Class of the client's side, a subclass of `AppClient`, as `package.module:Class`."""
    options: dict[str, Any] = {}
    """Options of both classes; those of federated learning are listed below."""
    folder: str = ""
    """Folder to which paths in the options are relative; if empty, the folder of the configuration file."""


class Closing(Section, frozen=True):
    """When a round of the protocol `assisted` closes, which means that it accepts no more contributions.

    A round has n_min to n_max contributions.  n_max is `per_round`; n_min is n_max - `protocol.tolerance`, or by
    default half of n_max.
    """

    clients: Positive | None = None
    """Number of contributions at which a round closes, from n_min to n_max; by default n_max."""
    seconds: Above = 3600.0
    """Seconds after which a deployed round closes even with fewer contributions than `clients` (see `extensions`)."""
    extensions: Count = 0
    """How often a round with fewer than n_min contributions stays open for another `seconds` instead of failing."""


class Federation(Section, frozen=True):
    """Clients, rounds and selection."""

    clients: Positive = 100
    """Number of all clients, N."""
    per_round: Positive = 50
    """Number of clients in a round, n."""
    rounds: Positive = 20
    """Number of rounds of the run, R."""
    selection: Literal["balanced", "uniform", "vrf"] = "balanced"
    """How a round's clients are selected: `balanced`, in turn by a public permutation, so that all clients take part
    about equally often; `uniform`, the server draws them; `vrf`, each client draws by a verifiable random function."""
    arrival: Literal["invited", "open"] = "invited"
    """`invited`: the server asks the selected clients; `open`: any registered client may contribute, once a round.

    `open` ignores `selection`, and needs a protocol without a fixed list of clients, such as `assisted`.  An `assisted`
    round has at most `per_round` and at least `per_round` - `protocol.tolerance` contributions.
    """
    participations: Positive | None = None
    """With `arrival` "open" or `selection` "vrf": participation cap, the largest number of rounds of one client.

    Clients enforce the cap.  By default it is a client's average number of rounds, rounds * per_round / clients,
    rounded up.
    """
    closing: Closing | msgspec.UnsetType = msgspec.UNSET
    """With the protocol `assisted`, when a round closes; by default at `per_round` contributions or after an hour."""
    tries: Positive = 5
    """Largest number of tries of a round, each with newly selected clients; if all fail, the run stops."""


class Privacy(Section, frozen=True):
    """The guarantee, and the noise that gives it."""

    epsilon: Above = 6.0
    """Privacy budget: the largest epsilon of one client, or with `unit` "record" of one record, over the run."""
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """Probability with which the guarantee of epsilon may fail; by default min{N^-1.1, 10^-5} for N clients."""
    clip: Above | Quantile = 1.0
    """Clip bound, the largest norm of an update; or a TOML table by which the bound follows a quantile of the norms."""
    mechanism: str | None = None
    """How updates are encoded and how noise is distributed: `skellam`, `ddgauss` or `package.module:Class`.

    By default the mechanism of the noise strategy, or `skellam` if the strategy has none.
    """
    bits: Annotated[int, msgspec.Meta(ge=1, le=32)] | None = None
    """Bits in which a coordinate of an encoded update is sent; by default the fewest without a loss of accuracy."""
    projection: Positive | Literal["auto", "adaptive", "off"] = "auto"
    """Number of coordinates to which updates are folded, that is, compressed by a random linear map; or a rule for it.

    `auto`: the least number that increases the standard deviation of a sum's error by at most 2 %, if the application
    allows folding (the built-in application does); `adaptive`: a smaller number, estimated from the sums of earlier
    rounds; `off`: updates are not folded.
    """
    accounting: Literal["cap", "all-rounds", "paper"] = "cap"
    """Rounds that are charged to a client.

    `cap`: the rounds in which the client takes part; `all-rounds`: all rounds of the run; `paper`: all rounds of the
    run, with the paper's accounting by Renyi divergences.
    """
    headroom: Above = 4.0
    """Number k: the integers modulo 2^bits can represent a coordinate of the noisy sum up to k standard deviations
    above and below 0.  The paper has k = 3.
    """
    noise: AnyStrategy = XNoise()
    """Noise strategy: how the noise is divided over the clients, and how dropout changes it."""
    unit: Literal["client", "record"] = "client"
    """Unit of privacy: what epsilon protects, a client with all its data, or each single record of a client."""
    record: str = ""
    """With `unit` "record": column of ids; all rows of a client with the same id are one record.

    If empty, each row is a record.
    """
    records: Count = 0
    """With `unit` "record": public upper bound on the number of records of a client."""
    sampling: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """With `unit` "record": probability with which a round samples each record."""


class Protocol(Section, frozen=True):
    """The summing protocol, by which the server learns sums of updates."""

    use: str = "secagg"
    """The protocol: `secagg`, `secagg+`, `assisted`, `plaintext` (which protects nobody) or `package.module:NAME`."""
    mode: Literal["malicious", "semi-honest"] = "malicious"
    """Which server the protocol withstands: any server, or only one that follows the protocol and is curious."""
    suite: str = "default"
    """Cryptographic primitives: `default` or `package.module:NAME`."""
    options: dict[str, Any] = {}
    """Settings of this protocol only.

    Those of `assisted` are: `helpers`, their number m or their ids; `faulty`, the number f of helpers that may collude
    with the server; `abort`: if true, m may be below 3 f + 1, and then a single helper can stop a round; `no_base`: if
    true, n_min may be below n_max / 2, and clients may add removable noise only; then more than f colluding helpers
    could see an update without noise.
    """
    threshold: Positive | None = None
    """Threshold t, the number of clients that must answer every stage.

    By default the least t with 2 t > n + T_C, for n clients and at most T_C colluders in a round (see `colluders`).
    """
    tolerance: Count | None = None
    """Tolerance T, the number of clients of a round that may drop out before their upload; with more, the round fails.

    By default 0.8 (n - t); n / 10 with `secagg+`; n / 2 with `assisted`; n - t for the unit "record" with n <= 10.
    """
    colluders: Count | None = None
    """Number of clients in the whole registry that may collude with the server; by default 1.

    The number must be set with `federation.arrival = "open"` and a malicious server, because a malicious server decides
    which clients it admits.

    T_C, the largest number of colluders in a round, is derived from this number.  If public randomness selects clients
    (`vrf`, or `balanced` with a beacon), a round has more than T_C colluders with a probability of 2^-40 at most, even
    if a malicious server chooses the best of 2^64 draws.  Otherwise T_C is the number of all colluders: a malicious
    server can choose a manifest whose permutation selects all of them for one round.
    """


class Performance(Section, frozen=True):
    """Settings that change the speed of a run, and no privacy guarantee."""

    chunks: Positive | Literal["auto"] = 1
    """Number of chunks of an update, which are summed in a pipeline; `auto` finds the fastest number during the run."""

    threads: Count = 0
    """Number of threads that remove masks or, with ideal fidelity, encode updates; 0: one for each core."""

    @property
    def cores(self) -> int:
        """Return the number of threads to use: `threads`, or one thread for each core if `threads` is 0."""
        return self.threads or os.cpu_count() or 1

    @property
    def fixed_chunks(self) -> int:
        """Return the number of chunks with which a run begins: `chunks`, or 1 for `auto`."""
        return 1 if self.chunks == "auto" else self.chunks


class Deadlines(Section, frozen=True):
    """Deadlines of requests: a client that does not answer in time is a dropout of the whole round."""

    train: Above = 600.0
    """Seconds for training if `train_seconds` is not set; otherwise training has `train_seconds` plus `stage`."""
    stage: Above = 60.0
    """Seconds for every request other than training."""
    stages: dict[str, Above] = {}
    """Seconds for requests of some kinds, in place of `stage`, by the kind's name, such as `CollectInput`."""
    quantile: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = 0.95
    """Quantile of the answer times so far, for each kind of request; learned deadlines are `factor` times this.

    Learned deadlines are at least `least` and at most `stage` (or the entry in `stages`).  So all deadlines are fixed
    if `least` equals `stage`.  Deadlines of training and of helpers are not learned.
    """
    factor: Annotated[float, msgspec.Meta(ge=1)] = 3.0
    """Factor by which the quantile of the answer times is multiplied for a learned deadline."""
    least: Above = 5.0
    """Shortest learned deadline, in seconds."""
    header: Above = 0.002
    """With `assisted`: seconds for each client of a round, added to `stage`, in which a helper decrypts mask seeds."""
    masks: Above = 5.0
    """With `assisted`: seconds for each 10^9 coordinates of masks, added to `stage`, in which a helper sums masks."""
    grace: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """Seconds in which a client may reconnect after its connection broke."""
    retry: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    """Seconds before a failed round is tried again; doubled for each further try, up to 60."""


class Deployment(Section, frozen=True):
    """Where the server of a deployed run is, and how it treats clients; simulations ignore this section."""

    host: str = "0.0.0.0"  # noqa: S104  a server is for clients on other machines
    """Address at which the server listens."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8765
    """Port at which the server listens; 0: any free port."""
    login: Literal["mutual", "challenge"] = "mutual"
    """How clients log in: `mutual`, by their TLS certificate, or `challenge`, by a signature, for servers behind a load
    balancer that terminates TLS."""
    balancers: tuple[str, ...] = ()
    """PEM files with the certificates of load balancers that terminate TLS, for `login` "challenge"."""
    beacon: str = ""
    """File of published randomness, which `vrf` and `secagg+` need; with `balanced` it decides the permutation."""
    train_seconds: Above | None = None
    """Fixed seconds from the request to train until the client answers, so that this time does not depend on data.

    Training that takes longer gives a zero update or, with `privacy.unit` "record", a late answer.  The setting is
    required in the malicious mode and with `privacy.unit` "record"; `dordis join --check` measures the training time on
    a client's machine.
    """
    trainings: Positive = 10
    """Largest number of trainings of a client between two counted participations; must exceed `federation.tries`."""
    wait: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    """Seconds for which the first round waits for all clients; after that, `protocol.threshold` clients are enough.

    With `assisted` the first round waits for all helpers; after that, a quorum of helpers is enough.
    """
    test: str | msgspec.UnsetType = msgspec.UNSET
    """File of a public table on the server's machine; the built-in application measures its model on this table."""
    poll: Above | msgspec.UnsetType = msgspec.UNSET
    """With `assisted`: seconds after which a client asks again for an open round to contribute to; 30 by default."""
    runs_a_day: Positive = 20
    """Largest number of new runs that a client accepts within 24 hours.

    Without this limit a malicious server could start many runs, and continue only one whose selection puts all its
    colluders into one round.
    """
    deadlines: Deadlines = Deadlines()
    """Deadlines of the clients' answers."""


class RunConfig(Section, frozen=True):
    """The settings that simulated and deployed runs have in common."""

    name: str = "digits"
    """Name of the run: its records go to `<output>/<name>/<time>`."""
    output: str = "runs"
    """Folder that contains the records of all runs."""
    app: App = App()
    federation: Federation = Federation()
    privacy: Privacy = Privacy()
    protocol: Protocol = Protocol()
    performance: Performance = Performance()
    deployment: Deployment = Deployment()


class Alerts(Section, frozen=True):
    """The operator's alerts.  They are not in `Config`, so no manifest or audit archive has them, and no client."""

    command: str = ""
    """A program and its arguments, run as `COMMAND KIND RUN TEXT` when a deployed run needs attention; empty: none."""


class Simulation(Section, frozen=True):
    """The simulation of clients: `seed` fixes data, selection and dropout; secrets come from the operating system."""

    fidelity: Literal["full", "ideal"] = "full"
    """`full` sends every message of the protocol; `ideal` only computes its result, with equally distributed noise."""
    seed: Count = 0
    """Seed from which data, initial model, selection and dropout are drawn."""
    dropout: DropoutModel = Rate(0.2)
    """Dropout model: it decides which clients drop out of a round, and at which stage."""
    engine: Literal["local", "ray"] = "local"
    """Where clients compute: `local`, in this process; `ray`, in processes of a Ray cluster."""
    workers: Count = 0
    """With `engine` "ray": number of processes over which clients are spread; 0: one per processor of the cluster."""

    @property
    def where(self) -> str:
        """Return in words where clients compute, from the settings alone."""
        return ONE_PROCESS if self.engine == "local" else "in processes of Ray"


class Config(RunConfig, frozen=True):
    """All settings of a run and of the simulation of its clients: the keys `name` and `output`, and the sections.

    >>> Config().federation.clients
    100
    """

    simulation: Simulation = Simulation()
