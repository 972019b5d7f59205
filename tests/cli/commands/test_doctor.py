"""The command that checks an installation: what it reports, and when it fails."""

import json
import os
import re
import tomllib

import pytest

from dordis.cli.commands import doctor as command
from tests.cli.in_process import dordis
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> list[str]:
    """Return the packages that a list of requirements names, without their versions."""
    return [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]


def test_doctor_finds_this_machine_in_order(tmp_path):
    done = dordis("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert found["noise of a known seed"]["ok"]
    assert found["numpy"]["ok"]


def test_doctor_looks_for_every_package_that_dordis_needs():
    assert list(command.NEEDED) == names(PROJECT["dependencies"])


@pytest.mark.parametrize(("package", "extra"), command.OPTIONAL.items())
def test_doctor_names_the_extra_of_an_optional_package(package, extra):
    assert package in names(PROJECT["optional-dependencies"][extra])


def test_doctor_names_what_is_missing_and_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_version", {"numpy": "2.0"}.get)
    monkeypatch.setattr(command, "NEEDED", ("numpy", "scipy"))
    monkeypatch.setattr(command, "measure_speed", list)
    done = dordis("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.endswith("to repair: scipy\n")
    assert "not installed; the extra flower has it" in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_doctor_says_where_records_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    done = dordis("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 1
