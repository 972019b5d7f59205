"""The configuration of a run: what may be set, and what is set if nothing is.

Privacy and performance are apart: nothing under `performance` changes a guarantee.
"""

import os
from typing import Annotated, Any, Literal

import msgspec

from dordis.federation.strategies import AnyStrategy
from dordis.federation.strategies.xnoise import XNoise
from dordis.privacy.clipping import Quantile

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Above = Annotated[float, msgspec.Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the configuration; a key that it does not know is an error."""


class App(Section, frozen=True):
    """What is computed: two classes by name, `package.module:Class`, and what they are told."""

    server: str = "dordis.apps.learning:Server"
    client: str = "dordis.apps.learning:Client"
    options: dict[str, Any] = {}
    folder: str = ""
    """What paths in the options are relative to: the folder of the configuration, unless this says otherwise."""


class Federation(Section, frozen=True):
    """Who takes part."""

    clients: Positive = 100
    per_round: Positive = 50
    rounds: Positive = 20
    selection: Literal["balanced", "uniform", "vrf"] = "balanced"
    tries: Positive = 5
    """How often a failing round is tried, each time with the next clients."""


class Privacy(Section, frozen=True):
    """What is guaranteed, and by which noise."""

    epsilon: Above = 6.0
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """min{N^-1.1, 10^-5} if it is not given."""
    clip: Above | Quantile = 1.0
    """The largest norm of an update; or a quantile of the norms, which the bound follows from round to round."""
    mechanism: str | None = None
    """`skellam`, `ddgauss` or `package.module:Class`; that of the noise strategy, or `skellam`, if not given."""
    bits: Annotated[int, msgspec.Meta(ge=1, le=32)] | None = None
    """Of a coordinate; as few as do no harm if not given."""
    projection: Positive | Literal["auto", "adaptive", "off"] = "auto"
    """Coordinates into which an update is folded where noise dominates; `auto`: as few as add 2 % to the noise at most,
    for applications that bear it, such as learning; `adaptive`: fewer, as the sums of the run allow; `off`: none."""
    accounting: Literal["cap", "all-rounds"] = "cap"
    noise: AnyStrategy = XNoise()


class Protocol(Section, frozen=True):
    """How updates are summed."""

    use: str = "secagg"
    """`secagg`, `secagg+`, `plaintext`, which protects nobody, or `package.module:NAME`."""
    mode: Literal["malicious", "semi-honest"] = "malicious"
    suite: str = "default"
    """`default` or `package.module:NAME`: the cryptographic primitives."""
    threshold: Positive | None = None
    """Clients that must answer every stage, t; a majority of honest ones if it is not given."""
    tolerance: Count | None = None
    """Dropouts after which the noise still holds, T."""
    colluders: Count = 1
    """Clients of the whole registry that may collude with the server.

    T_C, the largest number of them in a round, follows.  With public randomness (`vrf`, or `balanced` with a beacon) it
    is a quantile, exceeded with a chance of 2^-40; against a malicious server, in the best of 2^64 draws.  Without it
    T_C is all of them: a malicious server can choose a manifest whose permutation selects them together.
    """


class Performance(Section, frozen=True):
    """What makes a run faster or slower, and changes nothing else."""

    chunks: Positive | Literal["auto"] = 1
    """Pieces of an update that are summed in a pipeline; `auto` finds the best number from the rounds' own timings."""

    threads: Count = 0
    """In which a server removes masks, and clients of ideal rounds encode; 0: as many as there are cores."""

    receivers: Count = 0
    """Processes that only receive vectors, and add them up; a deployed server without them receives by itself."""

    @property
    def cores(self) -> int:
        """Return the number of threads."""
        return self.threads or os.cpu_count() or 1

    @property
    def fixed_chunks(self) -> int:
        """Return the number of chunks to begin with."""
        return 1 if self.chunks == "auto" else self.chunks


class Deadlines(Section, frozen=True):
    """Seconds after which a client that has not answered is out of the round, for all its chunks."""

    train: Above = 600.0
    """To train: whoever is ready then is in the round."""
    stage: Above = 60.0
    """To answer any other request."""
    stages: dict[str, Above] = {}
    """To answer requests of a kind, by its name, where that is another time: `CollectInput`, say."""
    quantile: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """If given, the deadline is `factor` times this quantile of the times seen before, within `least` and the above."""
    factor: Annotated[float, msgspec.Meta(ge=1)] = 3.0
    least: Above = 1.0
    grace: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """To come back, for a client whose connection broke."""


class Deployment(Section, frozen=True):
    """Where the server of a deployed run is, and how it treats clients; a simulation leaves this alone."""

    host: str = "0.0.0.0"  # noqa: S104  a server is there for others
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8765
    login: Literal["mutual", "challenge"] = "mutual"
    """How clients prove who they are: by the certificate of their TLS, or, behind a load balancer, by a signature."""
    balancers: tuple[str, ...] = ()
    """PEM files with the certificates of load balancers that end TLS: what clients see, and sign."""
    beacon: str = ""
    """A file of published randomness, for selection `vrf`, for `secagg+`, and for the permutation of `balanced`."""
    train_seconds: Above | None = None
    """Seconds from `Train` to `Ready`, whatever the data; training that takes longer gives a zero update.

    Required in the malicious mode: `dordis join --check` measures training on a client's machine.
    """
    trainings: Positive = 10
    """Largest number of trainings of a client before a round counts its participation; above `federation.tries`."""
    wait: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    """Seconds that the first round waits for clients that are not there; then as many as are needed are enough."""
    runs_a_day: Positive = 20
    """Largest number of new runs that a client accepts within 24 hours: more may be a search for a selection."""
    deadlines: Deadlines = Deadlines()


class RunConfig(Section, frozen=True):
    """What a run is, wherever its clients are."""

    name: str = "digits"
    output: str = "runs"
    app: App = App()
    federation: Federation = Federation()
    privacy: Privacy = Privacy()
    protocol: Protocol = Protocol()
    performance: Performance = Performance()
    deployment: Deployment = Deployment()
