"""Draw three pictures in docs/pictures: `python -m tools.architecture_pictures`, or `make pages`.

The layers come from the import contract in pyproject.toml, their texts from the table of docs/architecture.md; the
round comes from the workflows of the servers, the assisted one from its messages.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import cast

from dordis.pipeline.stages import group_stages, step_name
from dordis.protocol import Message, Resource, Role, Step
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.distributed_dp import DistributedDP
from dordis.protocols.secagg import SECAGG, SecAggServer
from dordis.rounds.engine import RoundServer
from dordis.rounds.invitation import Invitation, InvitationServer
from reproduce.costs_measured import SmallRound

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
PAGE = ROOT / "docs" / "architecture.md"
WIDTH, ROW = 1080, 30
STYLE = """
:root { --paper: #ffffff; --ink: #2b333d; --faint: #8a94a1; --c-comp: #d9e8f8; --comm: #fbe3cf; --s-comp: #d3efe3;
  --gate: #b3325f; }
@media (prefers-color-scheme: dark) { :root { --paper: #171b21; --ink: #d5dbe3; --faint: #7f8997; --c-comp: #1e3f60;
  --comm: #5f3719; --s-comp: #17503c; --gate: #f08bb0; } }
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
.name { font-weight: 600; }
.note { fill: var(--faint); }
.gate { fill: var(--gate); }
.rule { stroke: var(--gate); stroke-width: 1.5; stroke-dasharray: 5 4; }
.edge { stroke: var(--faint); fill: none; }
rect { stroke: var(--faint); }
""".strip()

STEPS = {
    "invite": "terms, digest of the model; the owner checks its policy",
    "send_model": "the model, or the sums that a client missed",
    "train": "the application computes the update",
    "advertise_keys": "stage 0: the owner consents to the parameters; encode; U1",
    "share_keys": "stage 1: encrypted shares of the seeds of masks and noise; U2",
    "deliver_shares": "stage 1: the shares, with their hashes",
    "prepare_inputs": "stage 2: clients add noise and masks",
    "collect_inputs": "stage 2: the server adds the uploads; U3",
    "agree": "stage 3: signatures on U3, in the malicious mode",
    "unmask": "stage 4: shares of masks; the server removes all masks",
    "release_secrets": "stage 5: seeds of the excess noise",
    "remove_noise": "the server removes the excess noise",
    "decode": "back to real units; impossible sums are refused",
    "dispatch": "the sum goes to the clients",
    "store": "clients decode the sum, and the application uses it",
}
"""What happens in each step of a round."""
LANES = {Resource.CLIENT: "clients compute", Resource.NETWORK: "network", Resource.SERVER: "server computes"}
"""The columns of the resources; the two ways of a link share one."""
ASSISTED_MESSAGES = {
    "Introduce": ("a round begins", "signed public keys for this round and the next"),
    "SendContribution": ("the parameters", "header, boxes, masked vector; then it leaves"),
    "OpenBoxes": ("headers, its boxes", "clients whose box is wrong"),
    "AgreeOnSurvivors": ("U3", "signature on U3, one for an index"),
    "Reveal": ("U3, a quorum of signatures", "mask sums of U3, or their digests"),
}
"""What every request of an assisted round brings, and what its answer does."""
COUNTS, CHARGES = "privacy gate: participations are counted", "privacy gate: the ledger is charged"


@dataclass(frozen=True)
class Row:
    """A step of a round in the picture: its name, resource, part of the round, and the gate before it, if any."""

    step: str
    resource: Resource
    part: str
    gate: str = ""


def read_layers() -> list[list[str]]:
    """Return the layers of the import contract from the highest to the lowest, each a list of packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = project["tool"]["importlinter"]["contracts"]
    return [re.findall(r"dordis\.(\w+)", layer) for layer in contract["layers"]]


def read_layer_texts(page: str) -> dict[str, str]:
    """Return the table of packages in docs/architecture.md: package and contents, in the page's order."""
    table = page.split("## Layers")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|$", table, re.MULTILINE))


def draw_layers(page: str) -> str:
    """Return the layers as SVG: one row each, packages of one layer side by side."""
    texts, parts = read_layer_texts(page), []
    for row, layer in enumerate(read_layers()):
        y, width = 8 + row * ROW, (WIDTH - 16) // len(layer)
        for place, package in enumerate(layer):
            x = 8 + place * width
            parts.append(draw_box(x, y, width - (6 if place < len(layer) - 1 else 0), "s-comp", package))
            parts.append(write(x + 130, y + 16, texts[package].replace("`", "")))
    height = 12 + len(read_layers()) * ROW
    return wrap_picture(parts, height, "The layers of dordis: each imports only from those below it")


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
            gate = find_gate(step)
            yield Row(step_name(step), step.resource, f"chunk: pipeline stage {number}", "" if gate in gates else gate)
            gates.add(gate)


def find_gate(step: Step) -> str:
    """Return what the privacy gate does before the request of a step leaves, or an empty string."""
    request = find_request(step)
    if request is None:
        return ""
    return COUNTS if request.uploads else CHARGES if request.discloses else ""


def find_request(step: Step) -> type[Message] | None:
    """Return the request of a step of the summing protocol, which has the step's name."""
    camel = "".join(word.capitalize() for word in step_name(step).split("_"))
    return next((kind for kind in SECAGG.requests if camel.startswith(kind.__name__)), None)


def draw_round() -> str:
    """Return the steps of a round as SVG: one row each, in the column of the resource that they keep busy."""
    left, lane, top = 190, 140, 34
    lanes = {resource: left + place * lane for place, resource in enumerate(LANES)}
    parts = [write(x + 8, 20, LANES[resource], "note") for resource, x in lanes.items()]
    y = top
    for part, group in groupby(list_rows(), lambda row: row.part):
        parts.append(f'<line class="edge" x1="8" y1="{y - 4}" x2="{WIDTH - 8}" y2="{y - 4}"/>')
        parts.append(write(12, y + 16, part, "note"))
        for row in group:
            if row.gate:
                parts.append(f'<line class="rule" x1="{left}" y1="{y + 12}" x2="{left + 3 * lane}" y2="{y + 12}"/>')
                parts.append(write(left + 3 * lane + 12, y + 16, row.gate, "gate"))
                y += ROW
            resource = Resource.NETWORK if row.resource is Resource.DOWNLINK else row.resource
            parts.append(draw_box(lanes[resource], y, lane - 8, resource.value, row.step))
            parts.append(write(left + 3 * lane + 12, y + 16, STEPS[row.step]))
            y += ROW
    return wrap_picture(parts, y + 4, "The steps of a round, and what each keeps busy")


def draw_assisted() -> str:
    """Return the messages of an assisted round as SVG: one row each, an arrow between the two parties."""
    columns = {Role.CLIENT: 76, None: 410, Role.HELPER: 744}
    titles = {Role.CLIENT: "clients that come", None: "server", Role.HELPER: "helpers"}
    parts = [draw_box(x - 62, 8, 124, "s-comp", titles[role]) for role, x in columns.items()]
    y = 56
    for request in ASSISTED.requests:
        gate = COUNTS if request.uploads else CHARGES if request.discloses else ""
        if gate:
            parts.append(f'<line class="rule" x1="8" y1="{y - 8}" x2="{WIDTH - 260}" y2="{y - 8}"/>')
            parts.append(write(WIDTH - 252, y - 4, gate, "gate"))
            y += 16
        sent, answered = ASSISTED_MESSAGES[request.__name__]
        start, end = columns[None], columns[request.role]
        parts += [draw_arrow(start, end, y + 6), write(min(start, end) + 8, y, f"{request.__name__}: {sent}", "note")]
        parts += [draw_arrow(end, start, y + 34), write(min(start, end) + 8, y + 28, answered)]
        y += 64
    lines = [f'<line class="edge" x1="{x}" y1="34" x2="{x}" y2="{y - 16}"/>' for x in columns.values()]
    return wrap_picture(lines + parts, y, "The messages of an assisted round")


def draw_arrow(start: int, end: int, y: int) -> str:
    """Return an arrow from one column to another."""
    tip = 8 if end > start else -8
    head = f'<path class="edge" d="M {end - tip} {y - 4} L {end} {y} L {end - tip} {y + 4}" fill="none"/>'
    return f'<line class="edge" x1="{start}" y1="{y}" x2="{end}" y2="{y}"/>{head}'


def draw_box(x: int, y: int, width: int, colour: str, title: str) -> str:
    """Return a box with a title; `colour` is a variable of the style sheet."""
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{ROW - 6}" rx="4" fill="var(--{colour})"/>'
    return f"{box}\n{write(x + 8, y + 16, title, 'name')}"


def write(x: int, y: int, text: str, kind: str = "") -> str:
    """Return a line of text, of a class of the style sheet if one is named."""
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def wrap_picture(parts: list[str], height: int, title: str) -> str:
    """Return a whole SVG document of these parts."""
    body, label = "\n".join(parts), escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">\n'
        f"<style>\n{STYLE}\n</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="var(--paper)" stroke="none"/>\n{body}\n</svg>\n'
    )


def draw_pictures() -> dict[str, str]:
    """Return all pictures by the names of their files."""
    layers = draw_layers(PAGE.read_text(encoding="utf-8"))
    return {"layers.svg": layers, "round.svg": draw_round(), "assisted.svg": draw_assisted()}


if __name__ == "__main__":
    for file, picture in draw_pictures().items():
        (PICTURES / file).write_text(picture, encoding="utf-8")
