"""Who takes part: eight clients, two more, an outsider, a stranger and their owners; parameters, good and forged.

Honest clients are made here and nowhere else.
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from dordis.errors import InputError, ParametersRefused
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.kernels.ring import Vector
from dordis.owner.participation import MemoryParticipation, Participation
from dordis.owner.policy import Owner, Policy
from dordis.privacy import scaling
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.scaling import Floats
from dordis.protocol import ClientId, Journal
from dordis.protocols.cohort import agree_on
from dordis.protocols.delivery import DeliveryClient
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.parameters import MALICIOUS, Parameters, table_hash
from dordis.protocols.secagg import SECAGG_PLUS, SecAggClient
from dordis.protocols.secagg.client import SecAggState
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppForm, FixedClient, RoundInfo
from dordis.rounds.client import Client
from dordis.rounds.invitation import ClientOwner, Invite, Terms
from dordis.rounds.model import ModelBytes, Numbers
from dordis.rounds.user_code import UserCode, ZeroOnFailure
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import NO_PROOFS, Proofs, SelectedClients, Selection

Clients = Collection[ClientId]
COMPLETE, SPARSE = "complete", "SecAgg+"
BOTH = (COMPLETE, SPARSE)
IDS = tuple(ClientId(u) for u in (3, 5, 8, 13, 21, 34, 55, 89))
SPARE = tuple(ClientId(u) for u in (377, 610))
"""Two more, for a larger round."""
OUTSIDER = ClientId(144)
"""Registered, but not among the clients of the round."""
STRANGER = ClientId(233)
"""Not even registered."""
RUN, INDEX = bytes(range(32)), 7
NEW_RUN = bytes(reversed(RUN))
EARLIER = RUN + (INDEX - 1).to_bytes(8, "big")
"""The id of the round before."""
BEACON = SeedBeacon(bytes(32))
NO_MODEL, OTHER_MODEL = ModelBytes.from_numbers(()), ModelBytes.from_numbers([1.0])
MODELS = {model.digest: model for model in (NO_MODEL, OTHER_MODEL)}
DIM, BITS, CLIP = 8, 16, 2.0**17
WHOLE = DSkellam(Grid(DIM, 1, 1.0, BITS), CLIP, scaling.sensitivity(1.0, CLIP, DIM).squared)
"""Takes updates of whole numbers as they are: they are neither clipped nor rounded."""


@cache
def keys_of(u: ClientId) -> Keys:
    """Return the private keys of a client: they protect nothing."""
    return Keys(*(hashlib.sha256(b"dordis/adversary/%b/%d" % (use, u)).digest() for use in (b"signing", b"vrf")))


@cache
def registry() -> Registry:
    """Return the registry: everyone but the stranger."""
    return Registry({u: keys_of(u).identity() for u in (*IDS, *SPARE, OUTSIDER)})


@cache
def signing_keys() -> dict[ClientId, bytes]:
    """Return everyone's public signing keys."""
    return registry().signing_keys()


def agreed(graph: str, **changes: Any) -> Parameters:
    """Return good parameters for eight clients: T = 3; T_C = 1, or on SecAgg+ 0, where k = 6 and t_k = 5."""
    settings: dict[str, Any] = {
        "run": RUN,
        "index": INDEX,
        "clients": IDS,
        "threshold": 5,
        "tolerance": 3,
        "colluders": 1,
        "bits": BITS,
        "ends": [DIM],
        "variances": [64] * len(changes.get("ends", [DIM])),
        "mode": MALICIOUS,
        "beacon": BEACON.value(INDEX),
        "encoding": encoding_of(WHOLE, bytes(32)),
        "model": NO_MODEL.digest,
    }
    if graph == SPARSE:
        settings |= {"degree": 6, "quorum": 5, "colluders": 0}
    return agree_on(**(settings | changes))


def forged(parameters: Parameters, **changes: Any) -> Parameters:
    """Change parameters as an adversary would: with the right hash of the noise tables, and no rule checked."""
    draft = msgspec.structs.replace(parameters, **changes)
    with suppress(ParametersRefused):  # of noise that cannot be read the tables stay
        return draft if "tables" in changes else msgspec.structs.replace(draft, tables=table_hash(draft))
    return draft


def words(*numbers: int) -> bytes:
    """Write numbers as parameters do."""
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def invitation(parameters: Parameters, model: ModelBytes = NO_MODEL) -> Invite:
    """Return the invitation that promises just what the parameters keep; if nobody can read that, what others keep."""
    try:
        terms = Terms.from_parameters(parameters)
    except ParametersRefused:
        terms = Terms.from_parameters(agreed(SPARSE if parameters.degree else COMPLETE))
    return Invite(
        round=parameters.round,
        number=1,
        protocol=SECAGG_PLUS.name,
        registry=registry().root(),
        dim=update_length(parameters),
        terms=terms,
        model=model.digest,
        model_bytes=len(model.data),
        dtype=model.dtype,
    )


class Holder(FixedClient):
    """An application that gives the update it holds, and remembers the model that it was given."""

    model: list[float] | None = None

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the update."""
        self.model = model.tolist()
        return self.update


class TrustingOwner:
    """An owner who consents to everything."""

    def accept(self, invite: Invite) -> bytes | None:
        """Accept."""
        return b""

    def take_piece(self, count: int) -> None:
        """Take it."""

    def train(self, invite: Invite) -> None:
        """Count nothing."""

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Consent."""

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count nothing."""

    def conclude(self, parameters: Parameters, survivors: Sequence[int]) -> None:
        """Note nothing."""


class AnySelection:
    """A strategy that takes every U as it comes: for attacks on something else than the selection."""

    is_drawn = False

    def candidates(self, index: int, available: Clients) -> tuple[ClientId, ...]:
        """Take everyone."""
        return tuple(sorted(available))

    def claim(self, invite: Invite, me: ClientId, vrf_key: bytes) -> bytes | None:
        """Claim a place."""
        return b""

    def select(self, index: int, available: Clients, proofs: Proofs = NO_PROOFS) -> SelectedClients:
        """Take everyone."""
        return SelectedClients(tuple(sorted(available)))

    def verify(self, parameters: Parameters, proofs: Proofs, me: ClientId) -> None:
        """Refuse nothing."""


lenient = partial(Policy, without_guarantee=True)
"""A policy for attacks on something else than the budget: updates here are whole numbers that no noise hides."""


def careful_owner(
    me: ClientId,
    policy: Policy | None = None,
    selection: Selection | None = None,
    participation: Participation | None = None,
) -> Owner:
    """Return an owner of the real kind, who insists on what is given."""
    policy, counted = policy or lenient(colluders=0), participation or MemoryParticipation()
    return Owner(me, policy, selection or AnySelection(), counted, registry().root(), keys_of(me).vrf, BEACON)


def honest_client(
    u: ClientId,
    app: Holder,
    journals: Callable[[bytes], Journal],
    owner: Owner | None = None,
    protocol: SummingProtocol = SECAGG_PLUS,
    form: AppForm | None = None,
    user_code: UserCode | None = None,
) -> Client:
    """Make a client with an application, keys, the registry and an owner; SecAgg+ speaks both graphs."""
    insists: ClientOwner = owner or TrustingOwner()
    signing, known = keys_of(u).signing, signing_keys()
    return Client(
        u,
        app,
        insists,
        protocol,
        signing=signing,
        registry=known,
        journals=journals,
        user_code=user_code or ZeroOnFailure(lambda message: None),
        form=form,
    )


def restored_machine(u: ClientId, vector: Vector, journal: Journal | None, state: SecAggState) -> SecAggClient:
    """Make the machine of a client as it was when its state was copied."""
    return SecAggClient(u, NoisyInput(vector), journal, state, signing=keys_of(u).signing, registry=signing_keys())


def honest_receiver(parameters: Parameters) -> DeliveryClient:
    """Make a client that waits for the sum of a round."""
    return DeliveryClient(DistributedDP.from_parameters(parameters, parameters.dim))


def update_length(parameters: Parameters) -> int:
    """Return the length of an update: before it is folded, and without the clipping bit."""
    if projection := parameters.encoding.projection:
        return projection.dim
    return parameters.update_dim


def random_update(parameters: Parameters) -> Floats:
    """Draw an update of whole numbers."""
    drawn = np.frombuffer(secrets.token_bytes(2 * update_length(parameters)), np.int16)
    return drawn.astype(np.float64)


def ring_input(parameters: Parameters, update: Floats) -> Vector:
    """Return what an update is in the sum; for parameters by which none can be encoded, zeros."""
    try:
        return DistributedDP.from_parameters(parameters, update_length(parameters)).encode(update)
    except InputError:
        return np.zeros(parameters.dim, np.uint32)
