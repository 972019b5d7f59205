"""All attacks, by theme."""

from dordis.adversary import (
    blame,
    delivery,
    directories,
    encoding,
    invitations,
    keys,
    liars,
    manifests,
    missed,
    noise,
    oracles,
    order,
    owners,
    projection,
    replays,
    restarts,
    rules,
    selection,
    sharing,
    survivors,
    views,
)
from dordis.adversary.attack import Attack

THEMES = (
    invitations,
    views,
    survivors,
    order,
    replays,
    restarts,
    keys,
    sharing,
    blame,
    noise,
    oracles,
    delivery,
    missed,
    rules,
    projection,
    owners,
    selection,
    manifests,
    encoding,
    directories,
    liars,
)

ATTACKS: tuple[Attack, ...] = tuple(attack for theme in THEMES for attack in theme.ATTACKS)
