"""The paper's cost mix: the costs of its prototype's operations, to simulate rounds as it ran them.

The prototype (10.3k lines of Python) draws masks with `random.randrange`, one coordinate at a time, packs and unpacks
coordinates in Python loops, lets the server remove masks in 16 processes and noise in 8, starts those processes anew
for every chunk, and pads *every chunk* to a power of two.  The source of each number is stated beside it.

Most of the gain of pipelining there is less padding.  `OVERLAP` is a mix with the same idle shares and no such gain.
"""

import msgspec

from reproduce.costs import CLIENT, REPLY, REQUEST, SERVER, Costs

MASK = 0.54e-6
"""Seconds a coordinate: `random.randrange` 0.46 us and adding a list modulo 2^b 0.08 us, timed in CPython 3.11."""
SERVER_PROCESSES, NOISE_PROCESSES = 16, 8
"""The server has 16 vCPUs (section 6.1); its pools have 16 processes for masks and 8 for noise."""
BYTES = 2.5
"""A coordinate in transit: b = 20 (section 6.1), 2.5 bytes (section 6.3)."""
UPLOAD = 0.69e-6
"""Seconds a coordinate of an upload at the server: unpacking in a Python loop is 0.29 us of it, the rest adding lists
and carrying them between processes; chosen for an s-comp that is idle 53 % of the round (section 4)."""
ENCODE, STORE, DECODE = 1.0e-6, 0.4e-6, 0.5e-6
"""Seconds a coordinate for rotating, rounding, packing, and back; chosen for a c-comp that is idle 63 %."""
NOISE = 0.065e-6
"""Seconds a coordinate of a component: two Poisson draws of small mean; chosen for the 34 % that XNoise adds at most
where nobody drops."""
CHUNK = 15.0
"""Seconds a chunk at the server for starting two pools of processes; chosen for the 1.3 to 1.5 times of ResNet-18 with
16 clients."""
SHARE = 1.5e-3
"""Seconds a share for rebuilding secrets, 15 s for 100 clients; chosen for the CNN, which gains nothing."""

OVERLAP_UPLOAD, OVERLAP_DECODE = 0.2e-6, 8.0e-6
"""Seconds a coordinate at the server, of each upload and of the sum: the other end of what idle shares at one number of
clients leave open.  With more work on the sum and less on uploads, servers of many clients wait more for clients."""
OVERLAP_CHUNK, OVERLAP_SHARE = 6.0, 1.0e-3
"""Seconds a chunk and a share; smaller than the paper's, because no padding is saved."""


def _mix(name: str, chunk: float, share: float, upload: float, decode: float) -> Costs:
    """Return a mix with this work of the server; T = n / 2 and the degrees are those that the paper published."""
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
"""The paper's costs without the padding, which is most of what larger models gain: 20M coordinates are padded to 34M
as one chunk, but to 21M as five."""
PAPER = msgspec.structs.replace(UNPADDED, name="paper", padded=True)
"""The paper's cost mix."""
OVERLAP = msgspec.structs.replace(
    _mix("overlap", OVERLAP_CHUNK, OVERLAP_SHARE, OVERLAP_UPLOAD, OVERLAP_DECODE), whole=True
)
"""A cost mix with the idle shares that the paper reports in which chunks save no padding: all gain is from overlap."""
