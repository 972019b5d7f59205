"""The pages on extending: every example runs, and every file that they name exists."""

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("extending_application.md", "extending.md", "extending_protocol.md")
TEXT = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)


def run_examples(monkeypatch):
    """Run every example of the pages, in their order, from top to bottom; return the module that they make."""
    module = types.ModuleType("extending_examples")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 13
    for block in blocks:
        exec(compile(block, "docs/extending.md", "exec"), vars(module))  # noqa: S102  it is our own page
    return module


@pytest.mark.slow
def test_the_examples_run_from_top_to_bottom(monkeypatch):
    assert run_examples(monkeypatch)


@pytest.mark.slow
def test_the_clinic_reads_its_own_file_and_its_server_survives_a_restart(monkeypatch, tmp_path):
    page = run_examples(monkeypatch)
    path = tmp_path / "heights.csv"
    clinic, server = page.Clinic(0, data=str(path)), page.DeployedHeight(data=str(path))
    assert not clinic.is_ready(None)
    path.write_text("name,height\na,1.6\nb,1.8\n")
    assert clinic.is_ready(None)
    assert clinic.describe_data() == {"rows": "2"}
    assert clinic.prepare_data(None, None).tolist() == pytest.approx([0.85])
    server.mean = 0.85
    again = page.DeployedHeight(data="elsewhere.csv")
    again.restore(server.state())
    assert again.result() == pytest.approx(1.7)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(src/[\w/.]+)`", TEXT))))
def test_every_file_that_is_named_exists(path):
    assert (ROOT / path).exists()


def test_a_mechanism_a_strategy_and_a_protocol_are_one_line_in_one_table():
    tables = {
        "privacy/mechanisms/__init__.py": "dordis.privacy.mechanisms.skellam_and_ddgauss:DDGauss",
        "privacy/noise_strategies.py": "TABLE = (XNoise, Orig, Early,",
        "protocols/__init__.py": "dordis.protocols.plaintext:PLAINTEXT",
    }
    source = ROOT / "src" / "dordis"
    for table, line in tables.items():
        assert line in (source / table).read_text()
    elsewhere = [path for path in source.rglob("*.py") if path not in {source / table for table in tables}]
    homes = {"DDGauss": "skellam_and_ddgauss.py", "Early": "noise_strategies.py", "PLAINTEXT": "plaintext.py"}
    for name, own in homes.items():
        users = {str(path.relative_to(source)) for path in elsewhere if re.search(rf"\b{name}\b", path.read_text())}
        assert all(user.endswith(own) or user.startswith("apps/audit/") for user in users), (name, users)


def test_the_requests_of_secagg_are_named_in_its_folder_alone():
    """Names of its requests stand nowhere else, but in demos and experiments that are about SecAgg itself."""
    from dordis.protocols.secagg import SECAGG

    source = ROOT / "src" / "dordis"
    about_secagg = ("protocols/secagg/", "adversary/", "reproduce/", "cli/commands/demo.py")
    names = re.compile(rf"\b({'|'.join(request.__name__ for request in SECAGG.requests)})\b")
    for path in source.rglob("*.py"):
        where = str(path.relative_to(source))
        if not where.startswith(about_secagg):
            code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
            assert not names.search(code), where
