"""Secrets come from the operating system and from seeds, never from `random`; and nothing is unpickled."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dordis"
FILES = sorted(SOURCE.rglob("*.py"))
SECRET = [path for path in FILES if path.relative_to(SOURCE).parts[0] in ("crypto", "kernels", "privacy")]
UNPICKLERS = ("pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of all that a module imports or reaches through an import's own name."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                aliases[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{aliases.get(node.value.id, node.value.id)}.{node.attr}"
        elif isinstance(node, ast.Call) and _called(node) in ("__import__", "import_module"):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def uses_random(code: str) -> list[str]:
    return [name for name in names(ast.parse(code)) if within(name, "random")]


def uses_numpy_random(code: str) -> list[str]:
    return [name for name in names(ast.parse(code)) if within(name, "numpy.random", "np.random")]


def unpickles(code: str) -> list[str]:
    tree = ast.parse(code)
    found = [name for name in names(tree) if within(name, *UNPICKLERS) or within(name, "numpy.lib.format.read_array")]
    for node in ast.walk(tree):
        for option in node.keywords if isinstance(node, ast.Call) else []:
            forbidden = isinstance(option.value, ast.Constant) and option.value.value is False
            if option.arg == "allow_pickle" and not forbidden:
                found.append(f"{_called(node)}(allow_pickle=..)")
    return found


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def find_names(paths: list[Path], search: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """Return what `search` finds in the code of each file, without the files in which it finds nothing."""
    found = {relative(path): search(path.read_text(encoding="utf-8")) for path in paths}
    return {path: names for path, names in found.items() if names}


def test_there_is_something_to_look_at():
    assert {"crypto/prg.py", "kernels/ring.py", "privacy/skellam_noise.py"} <= {relative(path) for path in SECRET}


def test_nothing_uses_the_module_random():
    assert find_names(FILES, uses_random) == {}


def test_secrets_and_noise_do_not_come_from_numpy():
    assert find_names(SECRET, uses_numpy_random) == {}


def test_nothing_is_unpickled():
    assert find_names(FILES, unpickles) == {}


@pytest.mark.parametrize(
    "code",
    [
        "import random",
        "import random as r",
        "from random import randrange",
        "def f():\n    import random",
        "import importlib\nimportlib.import_module('random')",
        "__import__('random')",
    ],
)
def test_the_module_random_is_found(code):
    assert uses_random(code)


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np\nnp.random.default_rng()",
        "import numpy\nnumpy.random.seed(1)",
        "import numpy as n\nx = n.random",
        "import numpy.random",
        "import numpy.random as r\nr.normal()",
        "from numpy import random",
        "from numpy.random import Generator",
    ],
)
def test_numpys_generators_are_found(code):
    assert uses_numpy_random(code)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal",
        "import joblib",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=trust)",
    ],
)
def test_unpickling_is_found(code):
    assert unpickles(code)


@pytest.mark.parametrize(
    "code",
    [
        "import secrets\nsecrets.token_bytes(32)",
        "from dordis.simulation import random",
        "from . import random",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "x = table.random",
    ],
)
def test_other_names_are_left_alone(code):
    assert not uses_random(code)
    assert not uses_numpy_random(code)
    assert not unpickles(code)
