"""The settings of a run under Flower: those of `dordis run`, from a dictionary such as a Flower app's `run_config`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from dordis.errors import InputError
from dordis.federation.config import App, Federation, RunConfig
from dordis.protocols.table import summing_protocol
from dordis.simulation.reading import explained, merged

NAME = "flower"
_HERE = "dordis.integrations.flower"
_FEDERATION = "federation"


def settings_of(given: RunConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return what is set, section by section; what belongs to others, such as an app's own settings, is left alone.

    >>> settings_of({"privacy.epsilon": 3.0, "federation": {"rounds": 5}, "learning-rate": 0.1})
    {'federation': {'rounds': 5}, 'privacy': {'epsilon': 3.0}}
    """
    plain = msgspec.to_builtins(given) if isinstance(given, RunConfig) else given
    nested: dict[str, Any] = {}
    for key, value in plain.items():
        first, *rest = key.split(".")
        if first in RunConfig.__struct_fields__ and first != "app":
            for name in reversed(rest):
                value = {name: value}
            nested = merged(nested, {first: value})
    if "rounds" not in nested.get(_FEDERATION, {}):
        raise InputError("the noise depends on the number of rounds: set federation.rounds")
    return dict(sorted(nested.items()))


def config_of(settings: Mapping[str, Any], clients: int, per_round: int) -> RunConfig:
    """Return the configuration of a run with so many clients, of whom so many are asked a round."""
    below = RunConfig(NAME, app=App(_HERE, _HERE), federation=Federation(clients, min(per_round, clients)))
    try:
        config = msgspec.convert(merged(msgspec.to_builtins(below), dict(settings)), RunConfig)
    except msgspec.ValidationError as error:
        raise InputError(explained(str(error))) from None
    check_supported(config)
    check_population(config.federation, clients)
    return config


def written(config: RunConfig) -> str:
    """Write a configuration as TOML."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(config)))


def check_supported(config: RunConfig) -> None:
    """Refuse graphs without public randomness, lots, and what Flower's trips make useless."""
    if summing_protocol(config.protocol.use).sparse and not Path(config.deployment.beacon).is_file():
        raise InputError("secagg+ needs public randomness: set deployment.beacon to its file, or use 'secagg'")
    if config.deployment.beacon and not summing_protocol(config.protocol.use).sparse:
        raise InputError(
            "under Flower only secagg+ uses deployment.beacon: remove the setting, or set protocol.use = 'secagg+'"
        )
    if config.federation.selection == "vrf":
        raise InputError("lots are not drawn under Flower: set federation.selection to 'balanced' or 'uniform'")
    if config.performance.chunks == "auto":
        raise InputError("under Flower all chunks travel together: set performance.chunks to a number")


def check_population(federation: Federation, clients: int) -> None:
    """The run is planned for the clients that there are."""
    if federation.clients != clients:
        raise InputError(f"{clients} nodes have enrolled, federation.clients says {federation.clients}")


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }
