"""Draw the pictures of docs/pictures that come from the code: `python -m tools.architecture_pictures`, or `make pages`.

The layers come from the import contract in pyproject.toml, their texts from the table of docs/architecture.md; the
rounds come from the workflows of the servers and from their messages, the noise from a plan of XNoise.
"""

import re
import tomllib
from itertools import groupby
from pathlib import Path

from dordis.protocol import Resource
from tools.drawing import ROW, WIDTH, draw_box, wrap_picture, write
from tools.noise_picture import draw_xnoise
from tools.round_steps import list_rows
from tools.sequence_pictures import draw_assisted, draw_secagg

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
PAGE = ROOT / "docs" / "architecture.md"
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


def draw_pictures() -> dict[str, str]:
    """Return all pictures by the names of their files."""
    layers = draw_layers(PAGE.read_text(encoding="utf-8"))
    return {
        "layers.svg": layers,
        "round.svg": draw_round(),
        "secagg.svg": draw_secagg(list(list_rows())),
        "assisted.svg": draw_assisted(),
        "xnoise.svg": draw_xnoise(),
    }


if __name__ == "__main__":
    for file, picture in draw_pictures().items():
        (PICTURES / file).write_text(picture, encoding="utf-8")
