"""Two network namespaces, one for the server and one for all clients, joined by a link with a class for each client.

Every client has an address of its own.  `htb` limits what leaves its address and what goes to it.  Nothing is changed
outside of the two namespaces, and removing them removes everything.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dordis.errors import InputError
from reproduce.cluster.links import SERVER, Link

BURST_KB = 16
"""Bytes that may leave at once, in kB."""
PACKETS = "gso_max_size 16384 gso_max_segs 11"
"""Settings of the virtual link, which would otherwise carry packets of 64 kB; real links carry 1,500 bytes."""
SHORT = "match u16 0x0000 0xfc00 at 2"
"""Packets below 1,024 bytes, by the length in their header: acknowledgements and most messages of the protocol."""
SEND_BUFFER = "4096 65536 131072"
"""Bytes that a connection may queue: least, initial, most."""
CANNOT_OPEN = "a local cluster cannot run here: "


@dataclass(frozen=True)
class Namespaces:
    """Names of the two namespaces."""

    server: str
    clients: str

    @classmethod
    def with_tag(cls, tag: str) -> "Namespaces":
        """Return names that no other experiment with another tag has."""
        return cls(f"dordis-{tag}-server", f"dordis-{tag}-clients")


def find_obstacle() -> str | None:
    """Return why namespaces cannot be made here, or None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} missing: install iproute2"
    probe = f"dordis-probe-{os.getpid()}"
    try:
        _run_batch(["ip"], [f"netns add {probe}", f"netns del {probe}"])
    except InputError as error:
        return str(error)
    return None


def ip_lines(names: Namespaces) -> list[str]:
    """Return the lines for `ip -batch` that make the namespaces and the link between them."""
    return [
        f"netns add {names.server}",
        f"netns add {names.clients}",
        f"link add to-clients netns {names.server} type veth peer name to-server netns {names.clients}",
    ]


def address_lines(links: Sequence[Link]) -> tuple[list[str], list[str]]:
    """Return the lines for `ip -batch` that set addresses: in the server's namespace, and in the clients'."""
    server = ["link set lo up", f"addr add {SERVER}/16 dev to-clients", f"link set to-clients {PACKETS} up"]
    clients = [
        "link set lo up",
        *(f"addr add {link.address}/16 dev to-server" for link in links),
        f"link set to-server {PACKETS} up",
    ]
    return server, clients


def shaping_lines(links: Sequence[Link], device: str, field: str) -> list[str]:
    """Return the lines for `tc -batch` that limit the bandwidth of each client in one direction.

    `field` is `src` if packets come from the client's address, `dst` if they go to it.  Short packets do not wait for
    the long ones of the same client, as with the fair queues of common systems.
    """
    lines = [f"qdisc add dev {device} root handle 1: htb r2q 1000"]
    for link in links:
        kbit, first = link.mbps * 1000, 4 * link.client
        whole, short, long = (f"1:{first + place:x}" for place in range(3))
        limits = f"ceil {kbit:.0f}kbit burst {BURST_KB}kb cburst {BURST_KB}kb"
        add, match = f"add dev {device} parent", f"u32 match ip {field} {link.address}/32"
        lines += [
            f"class {add} 1: classid {whole} htb rate {kbit:.0f}kbit {limits}",
            f"class {add} {whole} classid {short} htb rate {kbit / 2:.0f}kbit {limits} prio 0",
            f"class {add} {whole} classid {long} htb rate {kbit / 2:.0f}kbit {limits} prio 1",
            f"filter {add} 1: protocol ip prio 1 {match} {SHORT} flowid {short}",
            f"filter {add} 1: protocol ip prio 2 {match} flowid {long}",
        ]
    return lines


def limit_send_buffers(name: str) -> None:
    """Bound the bytes that a connection of a namespace queues: later messages wait behind them."""
    write = ["ip", "netns", "exec", name, "tee", "/proc/sys/net/ipv4/tcp_wmem"]
    subprocess.run(write, input=SEND_BUFFER, text=True, capture_output=True, check=False)


@contextmanager
def open_namespaces(links: Sequence[Link], tag: str) -> Iterator[Namespaces]:
    """Make both namespaces with their link; remove them at the end, whatever happens."""
    if (obstacle := find_obstacle()) is not None:
        raise InputError(f"{CANNOT_OPEN}{obstacle}")
    names = Namespaces.with_tag(tag)
    try:
        _run_batch(["ip"], ip_lines(names))
        for name, lines in zip((names.server, names.clients), address_lines(links), strict=True):
            _run_batch(["ip", "-n", name], lines)
            limit_send_buffers(name)
        _run_batch(["tc", "-n", names.clients], shaping_lines(links, "to-server", "src"))
        _run_batch(["tc", "-n", names.server], shaping_lines(links, "to-clients", "dst"))
        yield names
    finally:
        for name in (names.server, names.clients):
            with suppress(InputError):  # it was not made
                _run_batch(["ip"], [f"netns del {name}"])


def _run_batch(command: Sequence[str], lines: Sequence[str]) -> None:
    """Run lines of `ip` or `tc` in one process; raise InputError with its message if one fails."""
    text = "\n".join(lines) + "\n"
    done = subprocess.run([*command, "-batch", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"`{' '.join(command)}` failed: {done.stderr.strip() or 'no message'}")
