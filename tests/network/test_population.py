"""The population of a deployed run: its beacon, and the waiting for its first line."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from dordis.errors import InputError
from dordis.identity.registry import Registry
from dordis.network.deployment import deployable_config
from dordis.owner.manifest_checks import read_manifest
from dordis.records.manifest import encode_manifest
from dordis.runs.job import prepare
from dordis.runs.run import check_same, manifest_of
from dordis.selection.beacon import FileBeacon, SeedBeacon
from dordis.selection.selection import BalancedSelection
from tests.network.deployed_run import DeployedRun
from tests.network.process_roles import Total, settings
from tests.network.test_client_setup import CREATED, KEYS, lines
from tests.runs.cohorts import registry_of

pytestmark = pytest.mark.network


class FixedPopulation:
    """What a manifest says about a population."""

    beacon, registry = SeedBeacon(bytes(32)), registry_of(*range(1, 7))
    fidelity, where, consents = "deployed", "elsewhere", ()


@pytest.mark.parametrize("began", ["", "published.txt"])
def test_a_run_goes_on_with_a_beacon_if_it_began_with_one_wherever_its_file_is(tmp_path, began):
    def config(beacon):
        return deployable_config(settings([*KEYS, f"deployment.beacon={beacon}"]))

    manifest = manifest_of(prepare(config(began), Total()), FixedPopulation(), CREATED)
    records = SimpleNamespace(path=tmp_path, manifest=read_manifest(encode_manifest(manifest), 6))
    check_same(config("moved.txt" if began else ""), records)
    with pytest.raises(InputError, match=f"began {'with' if began else 'without'} a beacon"):
        check_same(config("" if began else "published.txt"), records)


@pytest.mark.slow
def test_a_deployed_run_waits_for_a_line_that_is_later_than_its_manifest(processes, tmp_path):
    path = tmp_path / "published.txt"
    path.write_text(lines(-3, 2))
    keys = [f"deployment.beacon={path}", "federation.per_round=4", "federation.rounds=2", "app.options.dim=100000"]
    fleet = DeployedRun(processes, tmp_path, 6, [*keys, "deployment.wait=600"])
    fleet.serve()
    for u in range(1, 7):
        fleet.join_and_wait(u)
    manifest = fleet.stored().manifest
    assert (manifest.first_line, manifest.beacon) == (3, "file: published.txt")
    assert not fleet.stored().rounds
    began, now = path.read_text(), datetime.now(UTC)
    later = [f"{now + timedelta(minutes=i):%Y-%m-%dT%H:%M:%SZ} {i:064x}\n" for i in range(1, 3)]
    path.write_text(began + "".join(later))
    assert fleet.end() == 0
    run = fleet.stored()
    order = BalancedSelection(Registry.load(fleet.run / "registry.json"), run.id, 4, 1, FileBeacon(path, first=3))
    assert [set(done.clients) for done in run.rounds] == [order.window(done.index) for done in run.rounds]
    fleet.check_sums()
