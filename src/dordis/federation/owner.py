"""The owner of a client: a policy, a way to verify who was selected, and a count of all participations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dordis.errors import ParametersRefused
from dordis.federation import beacon as beacons
from dordis.federation.design import Design
from dordis.federation.participation import Participation
from dordis.federation.policy import Policy
from dordis.federation.selection import Selection
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.rounds.invitation import Invite


@dataclass(frozen=True)
class Owner:
    """Decide for one client, before its data is touched, and count before anything is uploaded.

    `registry` is the root of the registry that the owner has pinned; `vrf_key` draws lots, where lots are drawn.  The
    `beacon` is needed for sparse graphs, which are drawn from its value.
    """

    me: ClientId
    policy: Policy
    selection: Selection
    participation: Participation
    registry: bytes = b""
    vrf_key: bytes = field(default=b"", repr=False)
    beacon: beacons.Beacon | None = None

    def accept(self, invite: Invite) -> bytes | None:
        """Refuse an invitation of another registry, outside the policy, or to a round in which I am not due."""
        check_pinned(invite, self.registry)
        self.policy.check_terms(invite.terms)
        return self.selection.claim(invite, self.me, self.vrf_key)

    def consent(self, parameters: Parameters, proofs: Mapping[int, bytes]) -> None:
        """Refuse a round outside the policy, or whose clients or graph were not drawn as they should be."""
        self.policy.check(parameters)
        self.selection.verify(parameters, {ClientId(u): proof for u, proof in proofs.items()}, self.me)
        if parameters.degree:
            if self.beacon is None:
                raise ParametersRefused("a sparse graph is verified with the beacon: give the owner its source")
            beacons.check_beacon(parameters, self.beacon)

    def attend(self, parameters: Parameters, machine: bytes) -> None:
        """Count this round, once and for one machine, and refuse it beyond the cap of the policy."""
        self.participation.reserve(parameters.run, parameters.index, machine, self.policy.participations)


def policy_of(design: Design) -> Policy:
    """Return the policy of an owner who agrees to a run as it is designed, and to nothing less."""
    parameters = design.example()
    return Policy(
        colluders=design.setting.colluders,
        modes=frozenset({parameters.mode}),
        schemes=frozenset({parameters.scheme}),
        mechanisms=frozenset({parameters.encoding.mechanism}),
        participations=design.cap if design.proves else None,
    )


def check_pinned(invite: Invite, root: bytes) -> None:
    """The run has the registry that the owner has pinned."""
    if invite.registry != root:
        raise ParametersRefused("the invitation is for another registry than the one that this owner has pinned")
