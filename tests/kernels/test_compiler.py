"""A first use that compiles says so, once; later uses and other people's functions say nothing."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

TWO_KERNELS = """
import numpy as np
from dordis.kernels import ring

acc = np.arange(40, dtype=np.uint32)
ring.reduce_modulo(acc, np.uint32(7))
assert acc.tolist() == [i % 8 for i in range(40)]
ring.add_lanes(acc, np.zeros((1, 40), np.uint8), np.zeros(1, np.uint32))
"""

OWN_FUNCTION = """
import numba

@numba.njit
def twice(x):
    return 2 * x

assert twice(21) == 42
"""


def stderr_of(code, cache):
    """Run Python code with machine code kept in `cache`, and return what it says."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def first_use(tmp_path_factory):
    """Use two kernels for the first time; return the cache and what was said."""
    cache = tmp_path_factory.mktemp("machine-code")
    return cache, stderr_of(TWO_KERNELS, cache)


def test_the_first_use_prints_one_line(first_use):
    cache, said = first_use
    assert said.splitlines() == ["dordis: compiling kernels, once on this machine: about 10 seconds"]
    assert any(Path(cache).rglob("*.nbc"))


IN_A_DISPLAY = """
from rich.console import Console

with Console(stderr=True).status("working"):
""" + "".join(f"    {line}\n" for line in TWO_KERNELS.strip().splitlines())


def terminal_of(code, cache):
    """Run Python code in a terminal, and return what that shows."""
    primary, secondary = pty.openpty()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "TERM": "xterm"}
    environment.pop("NUMBA_DISABLE_JIT", None)
    subprocess.run([sys.executable, "-c", code], env=environment, stdin=secondary, stderr=secondary, check=True)
    os.close(secondary)
    with os.fdopen(primary, "rb") as screen:
        return screen.read1(100_000).decode()


@pytest.mark.slow
def test_a_terminal_shows_it_in_one_line_that_goes_away(tmp_path):
    shown = terminal_of(TWO_KERNELS, tmp_path)
    assert "\n" not in shown
    assert shown.count("dordis: compiling ") == 2
    assert shown.endswith("\r\x1b[K")


@pytest.mark.slow
def test_a_live_display_shows_it_once(tmp_path):
    shown = terminal_of(IN_A_DISPLAY, tmp_path)
    assert shown.count("dordis: compiling ") == 1
    assert "[K" not in shown.replace("\x1b[2K", "")  # that of the display itself


@pytest.mark.slow
def test_later_uses_and_other_functions_print_nothing(first_use):
    cache, _ = first_use
    assert stderr_of(TWO_KERNELS + OWN_FUNCTION, cache) == ""


@pytest.mark.slow
def test_another_function_alone_prints_nothing(tmp_path):
    assert stderr_of("import dordis.kernels.ring" + OWN_FUNCTION, tmp_path) == ""
