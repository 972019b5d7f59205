"""The protocol with two helpers of docs/extending_protocol.md, and rounds of it with random inputs."""

import re
import sys
import types
from pathlib import Path

import numpy as np

from dordis.pipeline import executor as drive
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId
from dordis.protocols.noise_addition_and_removal import NoisyInput, PrivateServer
from dordis.protocols.parameters import common_part, complete
from dordis.protocols.summing import Roster
from dordis.simulation.exchange import LocalExchange

PAGE = (Path(__file__).parents[2] / "docs" / "extending_protocol.md").read_text(encoding="utf-8")
(CODE,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "SHARED = " in block)
EXAMPLE = types.ModuleType("shared_example")
sys.modules[EXAMPLE.__name__] = EXAMPLE
exec(compile(CODE, "docs/extending_protocol.md", "exec"), vars(EXAMPLE))  # noqa: S102  it is our own page

SHARED = EXAMPLE.SHARED
N_MIN, N_MAX, BITS, DIM = 5, 9, 20, 30
ROUND = bytes(32) + (3).to_bytes(8, "big")


def parties(scheme=Scheme.SINGLE, came=range(1, N_MAX + 1), variances=(400, 900)):
    """Return parameters, clients with random inputs, their inputs, and helpers."""
    make = SHARED.helper
    helpers = {ClientId(h): make(ClientId(h), secret=bytes([h]) * 32, registry={}, suite=None) for h in (1, 2)}
    introductions = {h: helper.handle(SHARED.introduces(ROUND)) for h, helper in helpers.items()}
    common = common_part(
        run=ROUND[:32], index=3, n_min=N_MIN, n_max=N_MAX, bits=BITS, ends=[12, DIM], scheme=scheme,
        variances=[0, 0] if scheme is Scheme.NONE else list(variances),
    )  # fmt: skip
    parameters = complete(SHARED.agree(common, Roster(introductions=introductions)))
    rng = np.random.default_rng(7)
    inputs = {ClientId(u): rng.integers(0, 2**BITS, DIM, dtype=np.uint32) for u in came}
    clients = {
        u: SHARED.client(u, NoisyInput(vector), signing=b"", registry={}, suite=None, journal=None, entropy=rng.bytes)
        for u, vector in inputs.items()
    }
    return parameters, clients, inputs, helpers


def play(parameters, clients, helpers, exchange=None):
    exchange = exchange or LocalExchange(clients, helpers=helpers, coming=lambda: list(clients))
    return drive.run(PrivateServer(SHARED.server(parameters, {}, {}, None), parameters), exchange)
