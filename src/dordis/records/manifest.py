"""The manifest of a run: everything fixed before its first round; its SHA-256 is the run id."""

from typing import Any

import msgspec

from dordis.errors import InputError
from dordis.privacy.further_releases import FurtherValue
from dordis.privacy.mechanisms import NoiseFrom
from dordis.privacy.record_accounting import SampledEvents
from dordis.protocols.parameters import Assistance

DEPLOYED = "deployed"
"""The fidelity of a run over the network; every other run is simulated."""
ONE_PROCESS = "in one process"
"""Default description of where the clients of a simulation ran."""
_FIDELITIES = {
    "ideal": "simulated {where}, which had everybody's data and computed what the protocol would give",
    "full": "simulated {where}, which had everybody's data and ran every message of the protocol",
    DEPLOYED: "deployed, every client answered over the network and kept its data",
}


class PlanRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plan of a run in numbers.

    `sigma` is the standard deviation of the noise on a coordinate of the decoded sum: the one on the integers, divided
    by `scale`.
    """

    dim: int
    bits: int
    scale: float
    clip: float
    sigma: float | None
    epsilon: float | None
    """The planned epsilon; None if no epsilon is proved."""
    delta: float
    cap: int
    """The number of rounds of one client, or of events of one record, that the guarantee covers."""
    threshold: int
    tolerance: int
    colluders: int
    """T_C, the largest number of colluders in a round."""
    upload_bytes: int
    """Size of one masked update, without keys and shares."""
    buckets: int = 0
    """Coordinates into which an update is folded before it is summed; 0 without folding."""
    projection_error: float | None = None
    """The largest fraction by which folding increases the error of a sum; None without folding."""
    quantile: float | None = None
    """The quantile of updates' norms that the clip bound follows, beginning at `clip`; None if the bound is fixed."""
    multiplier: float | None = None
    """The noise multiplier: standard deviation over sensitivity; None if clients add no noise."""
    times_trusted: float | None = None
    """Standard deviation of the noise on a sum, divided by that of a trusted server with the same guarantee."""
    all_colluders: int | None = None
    """The number of colluders in the whole registry, from which T_C follows; None if only T_C is known."""
    records: SampledEvents | msgspec.UnsetType = msgspec.UNSET
    """The planned events of one record, where records are the unit of privacy."""
    further: tuple[FurtherValue, ...] | msgspec.UnsetType = msgspec.UNSET
    """The application's further releases, without the clipping bit."""


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom the clients of a run must trust; reports derive all their statements about trust from these fields."""

    proves: bool
    """Whether the run has an epsilon."""
    stops: bool
    """Whether a round that would exceed the budget is refused."""
    noise: NoiseFrom
    """The party that adds the noise; if it is the server, clients trust it with the exact sum too."""
    hides_updates: bool
    """Whether the protocol hides single updates from the server."""
    simulated: bool
    """Whether one program had all data; the guarantee is then what a deployment with the same settings would have."""


class Descriptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Descriptions of the noise strategy and the mechanism, and the reason if no epsilon is proved."""

    noise: str
    mechanism: str
    unproved: str = ""


class Predecessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run that a successor run continues, with its model, ledger and participations; members may differ."""

    run: str
    """The run id of the predecessor, in hex."""
    head: str
    """Hash of the last line of the predecessor's ledger; empty without a ledger."""
    registry: str
    """Root of the predecessor's registry, in hex."""
    rounds: int
    """Number of finished rounds of all preceding runs."""
    clip: float | None = None
    """The clip bound with which the successor begins if it is adaptive; None if it is fixed."""
    budget: float | None = None
    """The largest planned or stated epsilon, at `delta`, of all preceding runs; None if they prove no epsilon."""
    delta: float | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything fixed before the first round; the SHA-256 of its file is the run id."""

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
    """`deployed`, or simulated: `full` with every message, or `ideal` with the same noise and no messages."""
    registry: str
    """Root of the registry, in hex; empty if the clients have no keys."""
    beacon: str
    """The source of public randomness; empty if the run uses none."""
    plan: PlanRecord
    trust: Trust
    words: Descriptions
    terms: tuple[str, ...]
    """The assumptions to publish with every epsilon."""
    stages: tuple[str, ...] = ()
    """The protocol's requests at which a client can drop out, in order."""
    consents: tuple[str, ...] = ()
    """What the owners' policies permit beyond the default policy."""
    unit: str = ""
    """The application's description of one client, the unit of privacy."""
    measured: str = ""
    """The application's description of its metrics."""
    predecessor: Predecessor | None = None
    where: str = ONE_PROCESS
    """Description of where the clients of a simulation ran."""
    first_line: int | None = None
    """Number, from 0, of the beacon line that round index 0 uses; the time of this line is later than `created`."""
    members: dict[int, str] | msgspec.UnsetType = msgspec.UNSET
    """The members of a deployed run: ids and fingerprints of their keys (`Registry.fingerprints`)."""

    assistance: Assistance | msgspec.UnsetType = msgspec.UNSET
    """The helpers that reveal the sums of masks, and how many of them may collude; left out without helpers."""

    @property
    def before(self) -> int:
        """Return the number of rounds that all preceding runs finished; 0 if this run continues none."""
        return 0 if self.predecessor is None else self.predecessor.rounds

    @property
    def budget(self) -> float | None:
        """Return the planned epsilon; None if no epsilon is proved."""
        if not self.trust.proves:
            return None
        planned: float | None = self.config.get("privacy", {}).get("epsilon", self.plan.epsilon)
        return planned

    @property
    def record_column(self) -> str:
        """Return the column of record ids; empty if each row is a record."""
        return str(self.config.get("privacy", {}).get("record", ""))

    @property
    def record(self) -> str:
        """Return in words what one record is: one row, or all rows with the same record id."""
        return f"all rows with the same {self.record_column}" if self.record_column else "one row"

    @property
    def how(self) -> str:
        """Return a clause on how the run was executed; reports state it, because a simulation protects nobody."""
        return describe_fidelity(self.fidelity, self.where)


def describe_fidelity(fidelity: str, where: str) -> str:
    """Return a clause on a fidelity, and on `where` a simulation ran, such as "in one process"; empty if unknown."""
    return _FIDELITIES.get(fidelity, "").format(where=where)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file, whose SHA-256 is the run id."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def check_name(name: str) -> None:
    """Raise InputError unless a run's name is a valid name of a directory."""
    if not name or name.startswith(".") or any(not (c.isalnum() or c in "._-") for c in name):
        raise InputError(f"a run's name is made of letters, digits and . _ -, not '{name}'")
