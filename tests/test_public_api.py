"""The public names: which they are, that each explains itself, and that asking for none of them costs nothing."""

import inspect
import subprocess
import sys

import pytest

import dordis

NAMES = [
    "Aggregate", "AppClient", "AppServer", "BudgetExceeded", "Config", "DordisError", "HopelessPlan",
    "InputError",
    "NothingTrained", "ProtocolError",
    "RoundFailed", "RoundInfo", "RunResult",
    "Table", "find_ranges", "histogram", "load", "mean", "noise", "run", "train",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert dordis.__all__ == NAMES
    assert set(NAMES) < set(dir(dordis))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(dordis, name))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dordis.nonsense  # noqa: B018


def test_importing_dordis_imports_neither_numpy_nor_numba() -> None:
    program = "import sys, dordis; print(sorted({'numpy', 'numba'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_client_needs_neither_dp_accounting_nor_scipy_nor_aiohttp() -> None:
    script = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dp_accounting", "scipy", "aiohttp"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import dordis.owner.directory, dordis.owner.policy, dordis.rounds.client
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
@pytest.mark.flower
def test_a_node_of_flower_imports_its_own_side_alone() -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    script = """
import sys
from dordis.integrations.flower import dordis_mod
import dordis.apps.learning
print([name for name in ("scipy.optimize", "scipy.fft", "dordis.integrations.flower.grid") if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
