"""All attacks, by theme."""

from types import ModuleType

from tests.adversary import (
    arrivals,
    assisted,
    blame,
    delivery,
    directories,
    encoding,
    invitations,
    invited,
    keys,
    liars,
    manifests,
    missed,
    noise,
    oracles,
    order,
    owners,
    projection,
    receipts,
    replays,
    restarts,
    rules,
    selection,
    sharing,
    survivors,
    views,
)
from tests.adversary.attack import Attack

THEMES: dict[str, ModuleType] = {
    "Invitations and models": invitations,
    "Different views": views,
    "Questions about data": oracles,
    "False survivors and signatures": survivors,
    "Order of requests": order,
    "Replays and restarts": replays,
    "Restarts from the disk": restarts,
    "Keys": keys,
    "Shares": sharing,
    "Blame": blame,
    "Noise": noise,
    "Delivery": delivery,
    "Assisted rounds": assisted,
    "Invited clients of assisted rounds": invited,
    "Missed sums": missed,
    "Parameters": rules,
    "Folding": projection,
    "The owner's policy": owners,
    "Selection": selection,
    "Open arrival": arrivals,
    "Run ids and manifests": manifests,
    "Bytes": encoding,
    "Liars on the network": liars,
    "Directories of runs": directories,
    "Receipts": receipts,
}
"""Modules of attacks by their headings in docs/attacks.md, where a module's docstring introduces its table."""

ATTACKS: tuple[Attack, ...] = tuple(attack for theme in THEMES.values() for attack in theme.ATTACKS)
