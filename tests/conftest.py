"""What all tests rest on: no luck, no deadlines, kernels that are compiled, and kinds of tests that must be run."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import seeded_randomness

ROOT = Path(__file__).parents[1]

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",  # nothing is reported to anyone
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # Ray kills workers when other programs take the machine's memory
}

# An example takes as long as it takes, and its randomness is the same each time it is tried.
hypothesis.settings.register_profile(
    "dordis",
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.filter_too_much,
    ],
)
hypothesis.settings.load_profile("dordis")
hypothesis.register_random(seeded_randomness.SOURCE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Let every test draw its randomness from its own name, wherever and after whatever it runs."""
    seeded_randomness.install(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Let what several tests share not depend on which of them is the first."""
    if fixturedef.scope == "function":
        return (yield)
    state = seeded_randomness.SOURCE.getstate()
    seeded_randomness.install(f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}]")
    try:
        return (yield)
    finally:
        seeded_randomness.SOURCE.setstate(state)


def pytest_configure(config: pytest.Config) -> None:
    """Let child processes import the package that is tested, and the tests, from any folder."""
    if not hasattr(config, "workerinput"):
        paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        config.pluginmanager.register(Required(config.getoption("require")))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels before processes beside each other do, and say so where a test reads what they say."""
    compiled = any((ROOT / "src" / "dordis" / "kernels" / "__pycache__").glob("*.nbc"))
    if not hasattr(session.config, "workerinput") and (session.config.getoption("numprocesses", None) or not compiled):
        from benchmarks.cold_start import call_kernels

        call_kernels()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --require."""
    parser.addoption("--require", action="append", default=[], metavar="KIND", help="fail if no test so marked was run")


class Required:
    """Fail the session if of some kind of tests none was run: all were skipped, or there are none."""

    def __init__(self, kinds: list[str]) -> None:
        self.missing = set(kinds)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self.missing -= report.keywords.keys()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for kind in sorted(self.missing):
            terminalreporter.write_line(f"FAILED: no test of the kind '{kind}' was run", red=True)
