"""Tests mirror the source: the test of `x/y.py` is `tests/x/test_y.py`, except for the modules listed here."""

import re
from pathlib import Path

from tools import package_sizes

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dordis"

ELSEWHERE = {
    "apps/learning/task.py": "test_library.py",
    "apps/tables/synthetic.py": "cli/commands/test_run_own_table.py",
    "cli/options.py": "cli/test_words.py",
    "cli/output.py": "cli/test_words.py",
    "cli/plan_advice.py": "cli/test_plan_noise.py",
    "cli/run_display.py": "cli/commands/test_run.py",
    "config/schema.py": "config/test_reading.py",
    "identity/certificates.py": "identity/test_keys.py",
    "integrations/flower/exchange.py": "integrations/flower/test_attacks.py",
    "integrations/flower/pins.py": "integrations/flower/test_attacks.py",
    "integrations/flower/population.py": "integrations/flower/test_attacks.py",
    "integrations/flower/state.py": "integrations/flower/test_attacks.py",
    "kernels/table_sampling.py": "privacy/test_skellam_table.py",
    "kernels/vector_instructions.py": "privacy/test_skellam_noise.py",
    "ledger/client_spending.py": "ledger/test_ledger.py",
    "ledger/stated_epsilon.py": "ledger/test_tampering.py",
    "owner/manifest_checks.py": "network/test_client_setup.py",
    "privacy/mechanisms/central_and_local_noise.py": "privacy/mechanisms/test_skellam_and_ddgauss.py",
    "privacy/noise_strategies.py": "runs/test_plan.py",
    "protocols/cohort.py": "protocols/test_parameters.py",
    "protocols/costs.py": "owner/test_policy.py",
    "protocols/one_message.py": "protocols/test_open_arrival.py",
    "records/manifest.py": "records/test_run_records.py",
    "report/facts.py": "report/test_page.py",
    "report/figures.py": "report/test_page.py",
    "report/numbers.py": "report/test_charts.py",
    "report/tables.py": "report/test_page.py",
    "rounds/arrivals.py": "protocols/test_open_arrival.py",
    "rounds/records.py": "apps/learning/test_record_gradients.py",
    "runs/job.py": "simulation/test_run.py",
    "runs/parties.py": "runs/test_restore.py",
    "simulation/population.py": "simulation/test_fidelity.py",
}
"""Modules without a test of their name, each with the test that covers it; entries may only be removed."""


def list_untested() -> list[str]:
    """Return the modules without a test of their name."""
    modules = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if not path.name.startswith("__")]
    return sorted(str(path) for path in modules if not (ROOT / "tests" / path.parent / f"test_{path.name}").exists())


def test_every_module_has_a_test_of_its_name_or_is_listed():
    assert sorted({*list_untested()} - ELSEWHERE.keys()) == []


def test_listed_modules_exist_without_a_test_of_their_name():
    assert sorted(ELSEWHERE.keys() - {*list_untested()}) == [], "remove these from the list"


def test_listed_tests_exist():
    assert [test for test in ELSEWHERE.values() if not (ROOT / "tests" / test).exists()] == []


def test_every_test_module_belongs_to_a_package_of_the_source():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.rglob("test_*.py"))}
    assert folders - {path.name for path in SOURCE.iterdir()} == {"adversary", "reproduce"}


def test_every_test_that_ci_names_exists():
    """A path that was renamed would make pytest end without running any test."""
    named = re.findall(r"\btests/[\w/]+(?:\.py)?", (ROOT / ".ci" / "run").read_text() + (ROOT / "Makefile").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_module_is_longer_than_400_lines():
    assert [path for path in SOURCE.rglob("*.py") if len(path.read_text().splitlines()) > 400] == []


def test_every_function_with_a_body_of_more_than_40_lines_has_a_reason():
    found = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        for name, _, body in package_sizes.list_long_functions(path)
        if body > package_sizes.LONGEST_FUNCTION
    }
    assert found == package_sizes.REASONS.keys()
