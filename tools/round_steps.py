"""The steps of a round with SecAgg, in order, from the workflows of the servers: what the pictures of a round draw."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from dordis.pipeline.planner import group_stages, step_name
from dordis.protocol import Message, Resource, Step
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.secagg import SECAGG, SecAggServer
from dordis.rounds.engine import RoundServer
from dordis.rounds.invitation import Invitation, InvitationServer
from reproduce.costs_measured import SmallRound

COUNTS, CHARGES = "privacy gate: participations are counted", "privacy gate: the ledger is charged"


@dataclass(frozen=True)
class Row:
    """A step of a round in the picture: its name, resource, part of the round, and the gate before it, if any."""

    step: str
    resource: Resource
    part: str
    gate: str = ""


def list_rows() -> Iterator[Row]:
    """Yield the steps of a round in order, from the workflows of its servers."""
    small = SmallRound(6, 13, 1, 1)
    private = DistributedDP(small.parameters, small.mechanism)
    server = RoundServer(SecAggServer(small.parameters), private)
    invitation = InvitationServer(cast(Invitation, None))  # its workflow does not depend on whom it invites
    for step in invitation.workflow:
        yield Row(step_name(step), step.resource, "invitation, once a round")
    for step in server.setup.workflow:
        yield Row(step_name(step), step.resource, "set-up, once a round")
    gates: set[str] = set()
    for number, stage in enumerate(group_stages(server.chunks[0].workflow), 1):
        for step in stage.steps:
            gate = find_gate(find_request(step))
            yield Row(step_name(step), step.resource, f"chunk: pipeline stage {number}", "" if gate in gates else gate)
            gates.add(gate)


def find_gate(request: type[Message] | None) -> str:
    """Return what the privacy gate does before a request leaves, or an empty string."""
    if request is None:
        return ""
    return COUNTS if request.uploads else CHARGES if request.discloses else ""


def find_request(step: Step) -> type[Message] | None:
    """Return the request of a step of the summing protocol, which has the step's name."""
    camel = "".join(word.capitalize() for word in step_name(step).split("_"))
    return next((kind for kind in SECAGG.requests if camel.startswith(kind.__name__)), None)
