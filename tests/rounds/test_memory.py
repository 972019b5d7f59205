"""Whatever lengths a server names, a client with one GiB of memory answers or refuses."""

import json
import subprocess
import sys

import pytest

HANG = 3000.0


def fuzzed(count):
    """Send so many messages to a client that is a process with a limit; return what came of them."""
    command = [sys.executable, "-m", "tests.rounds.memory_fuzz", str(count)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert ended.returncode == 0, ended.stderr
    came = json.loads(ended.stdout)
    assert came["failed"] == 0, ended.stderr
    return came


@pytest.mark.slow
def test_a_client_under_a_limit_of_memory_answers_or_refuses():
    came = fuzzed(1000)
    assert came["refused"] > 100
    assert came["answered"] > 10


@pytest.mark.slow
def test_a_client_under_a_limit_of_memory_answers_or_refuses_ten_thousand_times():
    came = fuzzed(10_000)
    assert came["answered"] + came["refused"] >= 10_000
