"""Several clients in one process, each with its own keys, state, connection and link.

    python -m reproduce.cluster.clients FOLDER FIRST STEP

The process runs every STEP-th client of the experiment, from zero-based index FIRST on.  FOLDER has the keys
(`c1.key`...), `registry.json`, `links.json`, `lost.json` and the folder `configs`.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dordis.config import reading
from dordis.config.schema import RunConfig
from dordis.errors import Aborted, InputError
from dordis.network.client import Participant
from dordis.network.client_setup import create_participant
from dordis.network.deadlines import compile_kernels
from dordis.network.messages import Welcome
from dordis.protocol import Message, Party
from reproduce.cluster.links import Link

OWNERS_EPSILON = 1e6
"""The budget of every owner: so large that no round is refused.  The updates are nobody's data."""


Handle = Callable[[Message], Message]


def handle_slowly(
    handle: Handle,
    slowness: float,
    is_lost: bool,
    sleep: Callable[[float], None] = time.sleep,
    meter: Callable[[], float] = time.thread_time,
) -> Handle:
    """Return a function that answers like `handle`, as late as a device that is `slowness` times slower would.

    It sleeps for the difference, so that other clients have the processor.  If `is_lost`, it raises Aborted instead
    of uploading.
    """

    def handle_request(request: Message) -> Message:
        if is_lost and request.uploads:
            raise Aborted("this client drops out before it uploads, as the experiment says")
        start = meter()
        reply = handle(request)
        if slowness > 1:
            sleep((slowness - 1) * (meter() - start))
        return reply

    return handle_request


def slow_down(participant: Participant, slowness: float, is_lost: bool) -> Participant:
    """Make a participant answer as late as a slower device, and drop out before its uploads if `is_lost`."""
    create = participant.create_party

    def create_slow(welcome: Welcome) -> Party:
        party = create(welcome)
        party.handle = handle_slowly(party.handle, slowness, is_lost)  # type: ignore[assignment, method-assign]
        return party

    participant.create_party = create_slow
    return participant


def create_clients(folder: Path, first: int, step: int) -> list[Participant]:
    """Create every `step`-th client of an experiment, from zero-based index `first` on."""
    links = msgspec.json.decode((folder / "links.json").read_bytes(), type=tuple[Link, ...])
    lost = msgspec.json.decode((folder / "lost.json").read_bytes(), type=set[int])
    here, *others = [reading.read_config(path) for path in sorted((folder / "configs").glob("*.toml"))]
    return [create_client(folder, link, link.client in lost, here, *others) for link in links[first::step]]


def create_client(folder: Path, link: Link, is_lost: bool, config: RunConfig, *others: RunConfig) -> Participant:
    """Create one client, which agrees to all configurations and connects through its relay."""
    key = folder / f"c{link.client}.key"
    registry, state = folder / "registry.json", folder / f"c{link.client}.state"
    url = f"https://localhost:{link.port}"
    joined = create_participant(url, config, 0, key, registry, state, budget=OWNERS_EPSILON, others=others)
    if not isinstance(joined, Participant):
        raise InputError("measured rounds have clients that stay connected: set protocol.use to secagg or secagg+")
    return slow_down(joined, link.slowness, is_lost)


async def stay(clients: list[Participant]) -> None:
    """Take part in every run of the server, until this process is ended."""
    await asyncio.gather(*(client.stay(follow=True) for client in clients))


def main(folder: str, first: str, step: str) -> None:
    """Create the clients of this process and let them take part."""
    logging.basicConfig(level=logging.WARNING)
    compile_kernels()
    asyncio.run(stay(create_clients(Path(folder), int(first), int(step))))


if __name__ == "__main__":
    main(*sys.argv[1:])
