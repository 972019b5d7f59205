"""All attacks, by theme."""

from dordis.adversary import (
    delivery,
    encoding,
    keys,
    noise,
    order,
    owners,
    replays,
    rules,
    selection,
    sharing,
    survivors,
    views,
)
from dordis.adversary.attack import Attack

THEMES: dict[str, tuple[Attack, ...]] = {
    "different views": views.ATTACKS,
    "false survivors and signatures": survivors.ATTACKS,
    "order of requests": order.ATTACKS,
    "replays and restarts": replays.ATTACKS,
    "keys": keys.ATTACKS,
    "shares": sharing.ATTACKS,
    "noise": noise.ATTACKS,
    "delivery": delivery.ATTACKS,
    "parameters": rules.ATTACKS,
    "the owner's terms": owners.ATTACKS,
    "selection": selection.ATTACKS,
    "bytes": encoding.ATTACKS,
}

ATTACKS: tuple[Attack, ...] = tuple(attack for theme in THEMES.values() for attack in theme)
