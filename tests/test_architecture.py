"""docs/architecture.md: layers, contract and imports agree; hops and paths exist; pictures are up to date."""

import pkgutil
import re
import secrets
from collections import Counter
from itertools import combinations

import grimp
import numpy as np
import pytest

from dordis.cli.demo_round import plan_demo
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.secagg import SECAGG
from dordis.simulation.run import home_of_updates, single_round
from tools import noise_picture
from tools.architecture_pictures import PAGE as PATH
from tools.architecture_pictures import PICTURES, ROOT, draw_pictures, read_layer_texts, read_layers
from tools.round_steps import list_rows
from tools.sequence_pictures import SECAGG_MESSAGES

PAGE = PATH.read_text(encoding="utf-8")
HOP = re.compile(r"^\| (\d+) \| (client|server) \| (\w+) \| `([\w.]+)` \|", re.MULTILINE)
ANSWER = re.compile(r"^\| [^|]+ \| `((?:src|reproduce|tests)/[\w/.]+)` \|$", re.MULTILINE)


def hops():
    return [(int(number), side, layer, name) for number, side, layer, name in HOP.findall(PAGE)]


def test_the_table_of_packages_has_the_order_of_the_contract():
    assert list(read_layer_texts(PAGE)) == [package for layer in read_layers() for package in layer]


def test_the_contract_has_every_package_and_no_other():
    here = {path.stem for path in (ROOT / "src" / "dordis").iterdir() if not path.name.startswith(("__", "py.typed"))}
    assert {package for layer in read_layers() for package in layer} == here


@pytest.fixture(scope="module")
def imports():
    """Return the pairs of packages of which one imports from the other, without imports for type checking."""
    graph = grimp.build_graph("dordis", exclude_type_checking_imports=True)
    pairs = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if module.count(".") and imported.count("."):
                pairs.add((module.split(".")[1], imported.split(".")[1]))
    return {(user, used) for user, used in pairs if user != used and "__main__" not in (user, used)}


def test_no_package_imports_from_one_above_or_beside_it(imports):
    height = {package: -row for row, layer in enumerate(read_layers()) for package in layer}
    assert [pair for pair in imports if height[pair[0]] <= height[pair[1]]] == []


def test_each_layer_is_needed_by_one_above_it(imports):
    top, *others = read_layers()
    used = {package for _, package in imports}
    unused = [package for layer in others for package in layer if package not in used]
    assert {*unused} <= {"library", "integrations"}  # they are for people, not for other packages
    assert top == ["cli"]


def test_packages_of_one_layer_are_independent(imports):
    beside = [pair for layer in read_layers() for pair in combinations(layer, 2)]
    assert beside
    assert not {pair for one, other in beside for pair in ((one, other), (other, one))} & imports


def test_the_way_has_at_most_15_hops_counted_from_1():
    assert [number for number, *_ in hops()] == list(range(1, len(hops()) + 1))
    assert 10 <= len(hops()) <= 15


@pytest.mark.parametrize("name", [name for *_, name in hops()])
def test_every_hop_exists(name):
    assert callable(pkgutil.resolve_name(name))


def test_every_hop_is_in_its_layer():
    assert all(name.split(".")[1] == layer for *_, layer, name in hops())


def test_the_way_goes_down_on_the_client_and_up_on_the_server_and_changes_sides_once():
    level = {name: -row for row, names in enumerate(read_layers()) for name in names}
    heights = {side: [level[layer] for _, at, layer, _ in hops() if at == side] for side in ("client", "server")}
    assert heights["client"] == sorted(heights["client"], reverse=True)
    assert heights["server"] == sorted(heights["server"])
    sides = [side for _, side, *_ in hops()]
    assert sides == sorted(sides)


def test_at_least_twenty_questions_are_answered_by_different_paths_that_exist():
    answers = ANSWER.findall(PAGE)
    assert len(set(answers)) == len(answers) >= 20
    assert [path for path in answers if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_path_of_a_page_exists(page):
    paths = re.findall(
        r"`((?:src|tests|reproduce|benchmarks|examples|tools|docs)/[\w/.-]*\w)`", (ROOT / page).read_text()
    )
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_pictures_are_up_to_date():
    for file, picture in draw_pictures().items():
        assert (PICTURES / file).read_text(encoding="utf-8") == picture, "draw them anew: make pages"


def test_no_class_has_the_name_of_another_but_for_the_roles_of_applications():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    names = Counter(name for source in sources for name in re.findall(r"^ *class (\w+)", source, re.MULTILINE))
    assert {name for name, times in names.items() if times > 1} <= {"Server", "Client", "Settings"}


class LeaveLate:
    """Two clients leave: one before its upload, one after it."""

    def available(self, index, clients):
        return frozenset(clients)

    def leaving(self, index, clients):
        return {u: stage for u, stage in ((3, "CollectInput"), (5, "Unmask")) if u in clients}


def record_requests():
    """Run one round of zeros; return the names of the requests that the server sent, each once, in their order."""
    seen = {}

    def tap(exchange):
        def deliver(requests):
            seen.update(dict.fromkeys(type(request).__name__ for request in requests.values()))
            return exchange(requests)

        return deliver

    design = plan_demo(8, 2, 6.0)
    zeros = np.zeros(design.setting.dim)
    home = home_of_updates(design, SECAGG, lambda u: zeros, secrets.token_bytes, LeaveLate())
    single_round(home, rounds=lambda run, selection: home.open(run, selection, {}, tap))
    return list(seen)


def test_the_sequence_diagram_has_the_requests_of_a_round_that_is_run_in_its_order():
    drawn = [name for row in list_rows() for name in SECAGG_MESSAGES.get(row.step, {})]
    sent = record_requests()
    assert set(drawn) - set(sent) <= {"SendModel", "RemoveNoise"}  # sent if a model is missing, or due seeds are
    assert [name for name in drawn if name in sent] == sent
    assert [name for name in drawn if name in {kind.__name__ for kind in SECAGG.requests}] == [
        kind.__name__ for kind in SECAGG.requests
    ]


def test_the_picture_of_xnoise_ends_with_the_planned_noise_and_the_baseline_below_it():
    survivors = [u for u in range(1, noise_picture.CLIENTS + 1) if u not in noise_picture.DROPPED]
    left = {
        scheme: sum(
            map(sum, noise_picture.list_shares(noise_picture.make_plan(scheme), survivors, removed=True).values())
        )
        for scheme in (Scheme.SINGLE, Scheme.ORIG)
    }
    assert left == {Scheme.SINGLE: noise_picture.TARGET, Scheme.ORIG: 75}
