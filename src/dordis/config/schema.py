"""The schema of the configuration: all settings of a run and their defaults.

Privacy and performance are separate sections: nothing under `performance` changes a guarantee.
"""

import os
from typing import Annotated, Any, Literal

import msgspec

from dordis.availability.dropout_models import DropoutModel, Rate
from dordis.privacy.clipping import Quantile
from dordis.privacy.strategies import AnyStrategy, XNoise
from dordis.records.manifest import ONE_PROCESS

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Above = Annotated[float, msgspec.Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the configuration; a key that it does not know is an error."""


class App(Section, frozen=True):
    """The application: two classes by name, `package.module:Class`, and their options."""

    server: str = "dordis.apps.learning:Server"
    """Class of the server's side, an `AppServer`."""
    client: str = "dordis.apps.learning:Client"
    """Class of the client's side, an `AppClient`."""
    options: dict[str, Any] = {}
    """Options of both classes; those of federated learning are listed below."""
    folder: str = ""
    """Folder that paths in the options are relative to; the folder of the configuration if empty."""


class Closing(Section, frozen=True):
    """When an assisted round closes: at a number of contributions, or after a time."""

    clients: Positive | None = None
    """Number of contributions at which a round closes, from n_min to n_max; by default n_max, which is `per_round`."""
    seconds: Above = 3600.0
    """Seconds after which a deployed round closes, whatever the number of contributions."""
    extensions: Count = 0
    """How often a round with fewer than n_min contributions stays open for another `seconds` instead of failing."""


class Federation(Section, frozen=True):
    """Clients, rounds and selection."""

    clients: Positive = 100
    """Clients in all, N."""
    per_round: Positive = 50
    """Clients of a round, n."""
    rounds: Positive = 20
    """Rounds of the run, R."""
    selection: Literal["balanced", "uniform", "vrf"] = "balanced"
    """Selection of a round's clients: by a public permutation, by the server, or by verifiable random functions."""
    arrival: Literal["invited", "open"] = "invited"
    """`invited`: the server asks selected clients; `open`: any registered client may contribute, once a round.

    With `open`, `selection` is not used, and only a protocol without a fixed list of clients, such as `assisted`,
    supports it.  In an `assisted` round at most `per_round` clients contribute, and up to `protocol.tolerance` fewer.
    """
    participations: Positive | None = None
    """With `open` or `vrf`, the largest number of rounds in which one client takes part; clients enforce it.

    By default it is the average number of rounds of a client, rounds * per_round / clients, rounded up.
    """
    closing: Closing | msgspec.UnsetType = msgspec.UNSET
    """With `assisted`, when a round closes; by default at `per_round` contributions or after an hour."""
    tries: Positive = 5
    """How often a failing round is tried, each time with newly selected clients."""


class Privacy(Section, frozen=True):
    """The guarantee, and the noise that gives it."""

    epsilon: Above = 6.0
    """Budget of one client, or one record, over the whole run."""
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """Chance with which the bound epsilon may fail; min{N^-1.1, 10^-5} if it is not given."""
    clip: Above | Quantile = 1.0
    """The largest norm of an update; or a quantile of the norms, which the bound follows from round to round."""
    mechanism: str | None = None
    """`skellam`, `ddgauss` or `package.module:Class`; by default the mechanism of the noise strategy, or `skellam`."""
    bits: Annotated[int, msgspec.Meta(ge=1, le=32)] | None = None
    """Bits of a coordinate; by default the fewest that do no harm."""
    projection: Positive | Literal["auto", "adaptive", "off"] = "auto"
    """Number of coordinates into which an update is folded where noise dominates, or a rule for it.

    `auto`: the least number that adds at most 2 % to the noise, if the application allows folding, as learning does;
    `adaptive`: fewer still, estimated from the sums of earlier rounds; `off`: updates are not folded.
    """
    accounting: Literal["cap", "all-rounds", "paper"] = "cap"
    """Rounds that are charged to a client.

    `cap`: those in which it takes part; `all-rounds`: all of the run; `paper`: all, by Renyi divergences.
    """
    headroom: Above = 4.0
    """k: the ring holds sums of up to k standard deviations of a coordinate without overflow; the paper has 3."""
    noise: AnyStrategy = XNoise()
    """Strategy: how clients divide the noise, and what dropout does to it."""
    unit: Literal["client", "record"] = "client"
    """What is hidden: a client with all its data, or each single record of any client."""
    record: str = ""
    """Column of ids: all rows of a client with the same id are one record.  If empty, each row is a record."""
    records: Count = 0
    """With `unit` "record", a public number that no client's number of records exceeds."""
    sampling: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Probability with which every round samples each record."""


class Protocol(Section, frozen=True):
    """The summing protocol."""

    use: str = "secagg"
    """`secagg`, `secagg+`, `assisted`, `plaintext`, which protects nobody, or `package.module:NAME`."""
    mode: Literal["malicious", "semi-honest"] = "malicious"
    """Server that the protocol withstands: one that may deviate, or one that follows the protocol."""
    suite: str = "default"
    """`default` or `package.module:NAME`: the cryptographic primitives."""
    options: dict[str, Any] = {}
    """Settings of the protocol's own; for `assisted`: `helpers` (number or ids), `faulty`, `abort` and `no_base`."""
    threshold: Positive | None = None
    """t, the number of clients that must answer every stage; by default the least t with 2 t > n + T_C."""
    tolerance: Count | None = None
    """T, the number of dropouts in a round under which the noise is still enough; with more, the round fails."""
    colluders: Count | None = None
    """Clients of the whole registry that may collude with the server; 1 if it is not given.

    With `federation.arrival = "open"` against a malicious server it must be given: the server decides whom to admit.

    T_C, the largest number of colluders in a round, is derived from it.  If public randomness selects clients (`vrf`,
    or `balanced` with a beacon), T_C is a quantile that is exceeded with a probability of 2^-40, even if a malicious
    server chooses the best of 2^64 draws.  Otherwise T_C is the number of all colluders: a malicious server can choose
    a manifest whose permutation selects them together.
    """


class Performance(Section, frozen=True):
    """Settings that change the speed of a run and nothing else."""

    chunks: Positive | Literal["auto"] = 1
    """Pieces of an update that are summed in a pipeline; `auto` finds the best number from the rounds' own timings."""

    threads: Count = 0
    """Threads in which a server removes masks, and clients of ideal rounds encode; 0: one for each core."""

    @property
    def cores(self) -> int:
        """Return the number of threads."""
        return self.threads or os.cpu_count() or 1

    @property
    def fixed_chunks(self) -> int:
        """Return the number of chunks of the first round: 1 for `auto`."""
        return 1 if self.chunks == "auto" else self.chunks


class Deadlines(Section, frozen=True):
    """Seconds after which a client that has not answered is dropped from the round, in all its chunks."""

    train: Above = 600.0
    """Seconds for training: clients that are not ready by then are left out of the round."""
    stage: Above = 60.0
    """Seconds for every other request."""
    stages: dict[str, Above] = {}
    """Seconds for single kinds of requests, by name, such as `CollectInput`; they replace `stage`."""
    quantile: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = 0.95
    """Learned deadlines: `factor` times this quantile of the answer times so far; not for training, nor for helpers.

    They are never below `least` nor above `stage` (or `stages`), and so fixed if `least` equals `stage`.
    """
    factor: Annotated[float, msgspec.Meta(ge=1)] = 3.0
    """Factor of learned deadlines."""
    least: Above = 5.0
    """Shortest learned deadline."""
    header: Above = 0.002
    """Seconds that a helper of an assisted round has to open boxes, beyond `stage`, for each of n_max clients."""
    masks: Above = 5.0
    """Seconds that a helper has to reveal mask sums, beyond `stage`, for each 10^9 coordinates of masks in them."""
    grace: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """Seconds in which a client may reconnect after its connection broke."""
    retry: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    """Seconds before a failed round is tried again; doubled for each further try, up to 60."""


class Deployment(Section, frozen=True):
    """Where the server of a deployed run is, and how it treats clients; simulations ignore this section."""

    host: str = "0.0.0.0"  # noqa: S104  a server is there for others
    """Address at which the server listens."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8765
    """Port at which the server listens; 0 takes a free one."""
    login: Literal["mutual", "challenge"] = "mutual"
    """How clients log in: `mutual`, by their TLS certificate, or `challenge`, by a signature (for load balancers)."""
    balancers: tuple[str, ...] = ()
    """PEM files with the certificates of load balancers that end TLS; clients sign the certificate that they see."""
    beacon: str = ""
    """A file of published randomness, for selection `vrf`, for `secagg+`, and for the permutation of `balanced`."""
    train_seconds: Above | None = None
    """Fixed seconds from `Train` to `Ready`, independent of the data; training that takes longer gives a zero update.

    Required in the malicious mode: `dordis join --check` measures training on a client's machine.
    """
    trainings: Positive = 10
    """Largest number of trainings of a client between two counted participations; more than `federation.tries`."""
    wait: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    """Seconds that the first round waits for all clients to connect; then `protocol.threshold` clients are enough."""
    test: str | msgspec.UnsetType = msgspec.UNSET
    """A public table at the server on which the built-in application measures its model; clients need no such file."""
    poll: Above | msgspec.UnsetType = msgspec.UNSET
    """With `assisted`, seconds between two visits of a client that waits for a task; 30 by default."""
    runs_a_day: Positive = 20
    """Largest number of new runs that a client accepts within 24 hours.

    A server that starts more may be searching for a run that selects its colluders together.
    """
    deadlines: Deadlines = Deadlines()
    """Deadlines of the clients' answers."""


class RunConfig(Section, frozen=True):
    """The settings of a run that do not depend on where its clients are."""

    name: str = "digits"
    """Name of the run: its records go to `<output>/<name>/<time>`."""
    output: str = "runs"
    """Folder of all records."""
    app: App = App()
    federation: Federation = Federation()
    privacy: Privacy = Privacy()
    protocol: Protocol = Protocol()
    performance: Performance = Performance()
    deployment: Deployment = Deployment()


class Alerts(Section, frozen=True):
    """The operator's alerts: not a part of `Config`, so that no client, manifest or archive of a run contains them."""

    command: str = ""
    """A program and its arguments, run as `COMMAND KIND RUN TEXT` when a deployed run needs attention; empty: none."""


class Simulation(Section, frozen=True):
    """The simulation of clients: `seed` fixes data, selection and dropout; secrets come from the operating system."""

    fidelity: Literal["full", "ideal"] = "full"
    """`full` sends every message of the protocol; `ideal` computes its result, with the same noise law."""
    seed: Count = 0
    """Seed of data, selection and dropout."""
    dropout: DropoutModel = Rate(0.2)
    """Model of dropout."""
    engine: Literal["local", "ray"] = "local"
    """Where clients compute: in this process, or in processes of a cluster of Ray."""
    workers: Count = 0
    """Processes of Ray that clients are spread over; 0: as many as the cluster has processors."""

    @property
    def where(self) -> str:
        """Describe where clients compute, from the settings."""
        return ONE_PROCESS if self.engine == "local" else "in processes of Ray"


class Config(RunConfig, frozen=True):
    """All settings of a run, and of the simulation of its clients.

    >>> Config().federation.clients
    100
    """

    simulation: Simulation = Simulation()
