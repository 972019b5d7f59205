"""The paper's cost mix: the costs of its prototype's operations, to simulate rounds as it ran them.

The prototype (10.3k lines of Python) draws masks with `random.randrange`, one coordinate at a time, packs and unpacks
coordinates in Python loops, lets the server remove masks in 16 processes and noise in 8, starts those processes anew
for every chunk, and pads *every chunk* to a power of two.  The source of each number is stated beside it.

Most of the gain of pipelining there is less padding.  `OVERLAP` is a mix with the same idle shares and no such gain.
"""

import msgspec

from reproduce.costs import CLIENT, REPLY, REQUEST, SERVER, Costs

MASK = 0.54e-6
"""Seconds for each coordinate of a mask in CPython 3.11: `random.randrange` 0.46 us, adding modulo 2^b 0.08 us."""
SERVER_PROCESSES, NOISE_PROCESSES = 16, 8
"""The server has 16 vCPUs (section 6.1); its pools have 16 processes for masks and 8 for noise."""
BYTES = 2.5
"""Bytes of a coordinate in transit (section 6.3): b = 20 bits (section 6.1)."""
UPLOAD = 0.69e-6
"""Seconds of the server for each coordinate of an upload: 0.29 us for unpacking in a Python loop, the rest for adding
lists and carrying them between processes.  Chosen so that s-comp is idle for 53 % of the round (section 4)."""
ENCODE, STORE, DECODE = 1.0e-6, 0.4e-6, 0.5e-6
"""Seconds for each coordinate: of a client to rotate, round and pack an update, of a client to decode a sum, and of the
server to decode a sum.  Chosen so that c-comp is idle for 63 % of the round."""
NOISE = 0.065e-6
"""Seconds for each coordinate of a noise component, two Poisson draws of small mean.  Chosen so that XNoise adds at
most 34 % to a round without dropout."""
CHUNK = 15.0
"""Seconds of the server for each chunk, to start two pools of processes.  Chosen for the speed-up of ResNet-18 with 16
clients, 1.3 to 1.5."""
SHARE = 1.5e-3
"""Seconds of the server for each share of a secret, 15 s for 100 clients; chosen so that the CNN gains nothing."""

OVERLAP_UPLOAD, OVERLAP_DECODE = 0.2e-6, 8.0e-6
"""Seconds of the server for each coordinate of each upload, and of the sum.  The paper's idle shares, known for one
number of clients, fix only the total.  Here most of it is for the sum: many clients keep the server less busy."""
OVERLAP_CHUNK, OVERLAP_SHARE = 6.0, 1.0e-3
"""Seconds for each chunk and for each share; smaller than above, because chunks save no padding."""


def _mix(name: str, chunk: float, share: float, upload: float, decode: float) -> Costs:
    """Return a mix with these costs of the server; T = n / 2 and the degrees are those of the paper's artifact."""
    unmask = {"one": chunk, "rebuilt": share, "uploads*dim": upload, "lifted*dim": MASK / SERVER_PROCESSES}
    laws = {
        "prepare_inputs": {CLIENT: {"dim": ENCODE, "masks*dim": MASK, "noise*dim": NOISE}},
        "collect_inputs": {REPLY: {"dim": BYTES}},
        "unmask": {SERVER: unmask},
        "remove_noise": {SERVER: {"due*dim": NOISE / NOISE_PROCESSES}},
        "decode": {SERVER: {"dim": decode}},
        "dispatch": {REQUEST: {"dim": BYTES}},
        "store": {CLIENT: {"dim": STORE}},
    }
    return Costs(name, laws, tolerated=0.5, degrees={16: 13, 100: 60}, one_way=True)


UNPADDED = _mix("paper, not padded", CHUNK, SHARE, UPLOAD, DECODE)
"""The paper's costs without padding.  Most of the speed-up of larger models is saved padding: 20M coordinates are
padded to 34M as one chunk, but to 21M as five."""
PAPER = msgspec.structs.replace(UNPADDED, name="paper", padded=True)
"""The paper's cost mix."""
OVERLAP = msgspec.structs.replace(
    _mix("overlap", OVERLAP_CHUNK, OVERLAP_SHARE, OVERLAP_UPLOAD, OVERLAP_DECODE), whole=True
)
"""A cost mix with the idle shares that the paper reports in which chunks save no padding: all gain is from overlap."""
