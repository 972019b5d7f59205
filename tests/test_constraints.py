"""The versions of constraints.txt can be installed together, with every extra."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"], "simulation": ["flwr[simulation]"]}
PINS = {
    canonicalize_name(name): version
    for name, _, version in (
        line.partition("==") for line in (ROOT / "constraints.txt").read_text().split("\n") if line and line[0] != "#"
    )
}


class Walk:
    """What a group of requirements comes to, over the versions that are pinned."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        """Why requirements could not be followed: what is pinned is not what is installed."""

    def required(self, wanted: list[str]) -> Iterator[tuple[str, Requirement]]:
        """Yield each requirement and who has it."""
        due, seen = [("dordis", Requirement(line)) for line in wanted], set()
        while due:
            asker, requirement = due.pop()
            if (key := str(requirement)) not in seen:
                seen.add(key)
                yield asker, requirement
                name = canonicalize_name(requirement.name)
                due += [(name, further) for further in self._of_the_pinned(name, requirement.extras)]

    def _of_the_pinned(self, name: str, extras: set[str]) -> Iterator[Requirement]:
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            self.unknown.append(f"{name} is not installed: make test-all installs every extra")
            return
        if installed.version.partition("+")[0] != PINS.get(name):
            self.unknown.append(f"{name} {installed.version} is installed, which is not the version that is pinned")
            return
        for requirement in map(Requirement, installed.requires or ()):
            marker, requirement.marker = requirement.marker, None
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                yield requirement


@pytest.mark.parametrize("group", GROUPS)
def test_every_requirement_is_met_by_the_version_that_is_pinned(group: str) -> None:
    walk = Walk()
    for asker, requirement in walk.required(GROUPS[group]):
        version = PINS.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} of {asker} is not in constraints.txt"
        assert requirement.specifier.contains(version, prereleases=True), f"{asker} wants {requirement}, not {version}"
    if walk.unknown:
        pytest.skip(walk.unknown[0])
