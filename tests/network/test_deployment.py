"""Deployable configurations: presets, the example of a deployment and its containers, and what is refused."""

import shlex
from pathlib import Path

import pytest

from dordis.cli.commands.participants import join
from dordis.cli.commands.serve import serve
from dordis.config import read_presets, reading
from dordis.errors import InputError
from dordis.network.deployment import DeployedJob, deployable_config, with_public_test

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

HERE = [
    name for name in read_presets() if reading.read_config(preset=name).app.options.get("data", "digits") == "digits"
]
"""Presets whose data come with the package; those of others are downloaded."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "deployment"


def job_from(config, folder):
    return DeployedJob.from_config(config, config.simulation.seed, folder / "server.key", folder / "registry.json").job


@pytest.mark.parametrize("preset", HERE)
def test_every_preset_that_simulates_deploys(preset, tmp_path):
    config = reading.read_config(preset=preset, keys=["deployment.train_seconds=1"])
    job = DeployedJob.from_config(
        config, config.simulation.seed, tmp_path / "server.key", tmp_path / "registry.json"
    ).job
    assert job.design.setting.dim > 0
    assert not hasattr(job.config, "simulation")


def test_noise_that_can_only_be_simulated_is_not_deployed():
    config = reading.read_config(keys=["privacy.noise.kind=rebasing", "simulation.fidelity=ideal"])
    with pytest.raises(InputError, match="not deployed"):
        deployable_config(config)


def test_a_deployment_against_a_malicious_server_says_how_long_training_takes():
    with pytest.raises(InputError, match=r"deployment.train_seconds must be set.*dordis join --check"):
        deployable_config(reading.read_config())
    assert deployable_config(reading.read_config(keys=["protocol.mode=semi-honest"])).deployment.train_seconds is None
    assert deployable_config(reading.read_config(preset="digits")).deployment.train_seconds == 1.0


def test_a_deployment_waits_for_training_longer_than_that_takes():
    keys = ["deployment.train_seconds=5", "deployment.deadlines.stages.Train=5"]
    with pytest.raises(InputError, match=r"Train = 5 must be above deployment.train_seconds = 5"):
        deployable_config(reading.read_config(keys=keys))


def test_a_client_may_train_more_often_than_a_round_is_tried():
    keys = ["deployment.train_seconds=5", "federation.tries=10"]
    with pytest.raises(InputError, match=r"deployment.trainings = 10 must be above federation.tries = 10"):
        deployable_config(reading.read_config(keys=keys))
    assert deployable_config(reading.read_config(keys=[*keys, "deployment.trainings=11"]))


def test_the_configuration_of_the_example_deploys(tmp_path):
    config = reading.read_config(EXAMPLE / "deployment.toml")
    job = DeployedJob.from_config(
        config, config.simulation.seed, tmp_path / "server.key", tmp_path / "registry.json"
    ).job
    assert job.config.federation.clients == 12
    assert config.deployment.deadlines.quantile == 0.9


def test_the_compose_file_starts_a_server_and_clients_with_options_that_exist():
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    assert services.keys() > {"server", "client-1"}
    for service in services.values():
        command, *arguments = shlex.split(service["command"])
        options = {name[2:].replace("-", "_") for name in arguments if name.startswith("--")}
        assert options <= {"server": serve, "join": join, "serve": serve}[command].__annotations__.keys()
        inside = {volume.split(":")[1] for volume in service["volumes"]}
        paths = [Path(argument.split("=")[-1]) for argument in arguments if "/etc/" in argument or "/run/" in argument]
        assert all(any(path.is_relative_to(mount) for mount in inside) for path in paths)
        assert service["image"] == "dordis:latest"


def test_a_server_without_its_public_table_says_that_nothing_is_measured(tmp_path, caplog):
    def config(**options):
        section = {"folder": str(tmp_path), "options": {"data": "own.csv", "test": "public.csv"} | options}
        return reading.config_from_settings({"app": section})

    with_public_test(config(own_files=True))
    assert f"there is no file {tmp_path / 'public.csv'} (app.options.test): no metrics are measured" in caplog.text
    caplog.clear()
    with_public_test(config())  # a data set of the server: reading it refuses a missing file
    (tmp_path / "public.csv").touch()
    with_public_test(config(own_files=True))
    assert not caplog.text
