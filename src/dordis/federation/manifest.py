"""The manifest: what is fixed before the first round of a run, and by its hash the run's id."""

from typing import Any

import msgspec

from dordis.privacy.mechanisms.mechanism import NoiseFrom

DEPLOYED = "deployed"
"""The fidelity of a run whose clients are processes of their own; every other run is simulated."""
HERE = "in one process"
"""Where the clients of a simulation are, if nothing else is said."""
_HOW = {
    "ideal": "simulated {where}, which had everybody's data and computed what the protocol would give",
    "full": "simulated {where}, which had everybody's data and ran every message of the protocol",
    DEPLOYED: "deployed, every client answered over the network and kept its data",
}


class PlanRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was planned, as numbers to be read: `sigma` is the noise on the sum, in units of updates."""

    dim: int
    bits: int
    scale: float
    clip: float
    sigma: float | None
    epsilon: float | None
    """What the plan proves; None if it proves nothing."""
    delta: float
    cap: int
    """Rounds that one client's guarantee covers."""
    threshold: int
    tolerance: int
    colluders: int
    """Of a round, T_C."""
    upload_bytes: int
    """One masked update; keys and shares come on top."""
    buckets: int = 0
    """Coordinates into which an update is folded before it is summed; 0: it is not."""
    projection_error: float | None = None
    """What folding adds to the error of a sum at most, as part of sigma."""
    quantile: float | None = None
    """The quantile of the norms that the clip bound follows, from `clip` on; None where the bound is fixed."""
    multiplier: float | None = None
    """The noise multiplier: standard deviation over what one client can change; None where clients add none."""
    times_trusted: float | None = None
    """The noise on a sum, over what a trusted server would add for the same guarantee."""
    all_colluders: int | None = None
    """Of the whole registry: T_C follows from it; None where only those of a round are known."""


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is trusted with what, as data: whatever is said of it follows from this."""

    proves: bool
    """Whether there is an epsilon at all."""
    stops: bool
    """Whether a round that would pass the budget is not started."""
    noise: NoiseFrom
    """Who adds the noise that privacy counts on; the server, if it does, is trusted with the sum too."""
    hides_updates: bool
    """Whether the protocol keeps single updates from the server."""
    simulated: bool
    """Whether one program had everybody's data: what is proved, is proved of a deployment like the run."""


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the noise strategy and the mechanism say of themselves, and why nothing is proved, where nothing is."""

    noise: str
    mechanism: str
    unproved: str = ""


class Predecessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run that another one goes on from, with other members: model, ledger and participations are carried on."""

    run: str
    """Its run id, in hex."""
    head: str
    """Hash of the last line of its ledger; empty without one."""
    registry: str
    """Root of its registry, in hex."""
    rounds: int
    """Rounds that were finished, in it and before it."""
    clip: float | None = None
    """The clip bound that comes next; None where nothing is clipped."""
    budget: float | None = None
    """The largest epsilon that it, or a run before it, was planned for, at `delta`; None where nothing is proved."""
    delta: float | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is fixed before the first round; the SHA-256 of its file is the run id."""

    name: str
    created: str
    version: str
    config: dict[str, Any]
    clients: int
    per_round: int
    rounds: int
    noise: str
    """Name of the noise strategy."""
    mechanism: str
    protocol: str
    mode: str
    selection: str
    fidelity: str
    """`deployed`; or simulated: `full`, with every message, or `ideal`, its result computed with the same noise."""
    registry: str
    """Root of the registry, in hex; empty if the clients have no keys."""
    beacon: str
    """Where public randomness comes from; empty where the run rests on none."""
    plan: PlanRecord
    trust: Trust
    words: Words
    terms: tuple[str, ...]
    """What must be said with every epsilon."""
    stages: tuple[str, ...] = ()
    """The requests of the protocol at which a client can be missed, in order."""
    consents: tuple[str, ...] = ()
    """What the owners of the clients allow that a policy refuses unless it is told otherwise."""
    unit: str = ""
    """What one client is, as the application says: whom privacy protects as a whole."""
    measured: str = ""
    """What the metrics are, as the application says."""
    predecessor: Predecessor | None = None
    where: str = HERE
    """Where the clients of a simulation were."""
    first_line: int | None = None
    """The line of the beacon, counted from 0, that has the value of round 0: one that is later than `created`."""
    members: dict[int, str] | msgspec.UnsetType = msgspec.UNSET
    """Who is in a deployed run: ids, with fingerprints of their keys (`Registry.fingerprints`)."""

    @property
    def before(self) -> int:
        """Return how many rounds were finished in the runs before."""
        return 0 if self.predecessor is None else self.predecessor.rounds

    @property
    def budget(self) -> float | None:
        """Return the epsilon that the run was planned for; None where nothing is proved."""
        if not self.trust.proves:
            return None
        planned: float | None = self.config.get("privacy", {}).get("epsilon", self.plan.epsilon)
        return planned

    @property
    def how(self) -> str:
        """Say what was run, in the words that go with every figure: what is simulated protects nobody."""
        return how_run(self.fidelity, self.where)


def how_run(fidelity: str, where: str) -> str:
    """Say what a fidelity means; nothing of one that is not known."""
    return _HOW.get(fidelity, "").format(where=where)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest's file, whose SHA-256 is the run id."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
