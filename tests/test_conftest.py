"""What tests rest on: randomness that follows from their names, and kinds of tests that cannot be skipped unseen."""

import secrets
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

TWO_KINDS = """
import pytest

@pytest.mark.first
def test_that_is_run():
    pass

@pytest.mark.second
def test_that_is_skipped():
    pytest.skip("something is missing")
"""


@pytest.fixture(scope="module")
def shared():
    return secrets.token_bytes(8)


@pytest.mark.parametrize("case", [1, 2])
def test_what_a_test_draws_follows_from_its_name(request, case, shared):
    assert secrets.token_bytes(8) == Random(request.node.nodeid).randbytes(8)
    assert shared == Random("tests/test_conftest.py::shared[0]").randbytes(8)


def test_every_example_draws_the_same():
    drawn = set()

    @given(st.integers())
    def check(number):
        drawn.add(secrets.token_bytes(8))

    check()
    assert len(drawn) == 1


@pytest.mark.slow
def test_a_kind_of_which_no_test_was_run_fails_the_session(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    first: one\n    second: another\n")
    (tmp_path / "test_two_kinds.py").write_text(TWO_KINDS)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("--require", "first").returncode == 0
    failed = run("--require", "first", "--require", "second", "--require", "third")
    assert failed.returncode == 1
    named = [line for line in failed.stdout.splitlines() if line.startswith("FAILED: ")]
    assert named == [f"FAILED: no test of the kind '{kind}' was run" for kind in ("second", "third")]
