"""The links and devices of clients as in section 6.1: bandwidths, latencies and speeds, each by Zipf's law."""

from collections.abc import Sequence

import msgspec

from dordis.errors import InputError
from dordis.protocol import ClientId
from dordis.simulation.virtual_devices import MEGABIT, WORKERS, Device, heterogeneous

SERVER = "10.77.0.1"
"""Address of the server in its namespace."""
MOST_CLIENTS = 2000
SLOWEST, FASTEST = 21.0, 210.0
"""The paper's bandwidths, in Mbps."""
LATENCY = 0.05
"""Seconds, one way, of the client with the largest latency; the paper gives the law of latencies, not their size."""
RELAY_PORT = 20_000
"""Client u reaches the server through its relay at this port + u."""


class Link(msgspec.Struct, frozen=True):
    """The link and the device of one client."""

    client: int
    address: str
    mbps: float
    """Bandwidth in each direction."""
    latency: float
    """Seconds, each way."""
    slowness: float = 1.0
    """Seconds that the client takes for one second of this machine's processor."""

    @property
    def port(self) -> int:
        """Return the port of the client's relay."""
        return RELAY_PORT + self.client

    def device(self, crowd: float = 1.0) -> Device:
        """Return the link and device for virtual time, if `crowd` clients share a processor of this machine.

        Only the time that a task takes on this machine is multiplied: a slower device sleeps for the rest of its time.
        """
        return Device(self.mbps * MEGABIT, self.latency, crowd + self.slowness - 1, WORKERS)


def plan_links(
    clients: int, seed: int = 1, slower: float = 1.0, latency: float = LATENCY, slowness: float = 1.0
) -> tuple[Link, ...]:
    """Return a link for every client, with bandwidths, latencies and speeds in three random orders of the clients.

    In each of these orders the i-th slowest client takes i^-1.2 of the time of the slowest one.

    `slower` divides all bandwidths; `slowness` is that of the slowest device; no device is faster than this machine.

    >>> [(link.address, round(link.mbps)) for link in plan_links(3)]
    [('10.77.1.1', 21), ('10.77.1.2', 78), ('10.77.1.3', 48)]
    """
    if not 1 <= clients <= MOST_CLIENTS:
        raise InputError(f"a local cluster has 1 to {MOST_CLIENTS} clients, not {clients}")
    if not (slower > 0 and latency >= 0 and slowness >= 1):
        raise InputError("a link is slower by a factor above 0, its latency is not negative, a device's slowness >= 1")
    members = [ClientId(u) for u in range(1, clients + 1)]
    links = heterogeneous(members, seed, slowest=SLOWEST / slower, fastest=FASTEST / slower)
    devices = heterogeneous(members, seed + 1)
    return tuple(
        Link(
            int(u),
            f"10.77.{1 + (u - 1) // 250}.{1 + (u - 1) % 250}",
            links[u].bandwidth / MEGABIT,
            latency * links[u].slowness,
            max(1.0, slowness * devices[u].slowness),
        )
        for u in members
    )


def slowest_mbps(links: Sequence[Link]) -> float:
    """Return the Mbps of the slowest link."""
    return min(link.mbps for link in links)
