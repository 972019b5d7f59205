"""docs/architecture.md: every hop of an update exists, there are few, and none goes the wrong way."""

import pkgutil
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOP = re.compile(r"^\| (\d+) \| (client|server) \| (\w+) \| `([\w.]+)` \|", re.MULTILINE)


def hops():
    return [(int(number), side, layer, name) for number, side, layer, name in HOP.findall(PAGE)]


def layers():
    """Return the layers of the import contract, from the lowest to the highest, as lists of package names."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    return [re.findall(r"dordis\.(\w+)", layer) for layer in reversed(contract[0]["layers"])]


def test_the_way_has_at_most_16_hops_counted_from_1():
    assert [number for number, *_ in hops()] == list(range(1, len(hops()) + 1))
    assert 10 <= len(hops()) <= 16


@pytest.mark.parametrize("name", [name for *_, name in hops()])
def test_every_hop_exists(name):
    assert callable(pkgutil.resolve_name(name))


def test_every_hop_is_in_the_layer_that_is_said():
    assert all(name.split(".")[1] == layer for *_, layer, name in hops())


def test_the_way_goes_down_on_the_client_and_up_on_the_server_and_changes_sides_once():
    level = {name: height for height, names in enumerate(layers()) for name in names}
    heights = {side: [level[layer] for _, at, layer, _ in hops() if at == side] for side in ("client", "server")}
    assert heights["client"] == sorted(heights["client"], reverse=True)
    assert heights["server"] == sorted(heights["server"])
    sides = [side for _, side, *_ in hops()]
    assert sides == sorted(sides)


def test_the_picture_names_every_layer_of_the_contract_in_order():
    picture = PAGE.split("```")[1]
    listed = [name for names in reversed(layers()) for name in names]
    shown = [name for name in re.findall(r"\b\w+\b", picture) if name in listed]
    here = {path.stem for path in (ROOT / "src" / "dordis").iterdir() if not path.name.startswith("__")}
    missing = [name for name in listed if name in here and name not in shown]
    assert not missing


def test_no_class_has_the_name_of_another_but_for_the_roles_of_applications():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    names = Counter(name for source in sources for name in re.findall(r"^ *class (\w+)", source, re.MULTILINE))
    assert {name for name, times in names.items() if times > 1} <= {"Server", "Client", "Settings"}
