"""The plaintext client: rules are checked first, given secrets are kept, and only due secrets are disclosed."""

import numpy as np
import pytest
from msgspec.structs import replace

from dordis.errors import ParametersRefused, ProtocolError
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.distributed_noise import NoisyInput
from dordis.protocols.escrow import draw_secrets
from dordis.protocols.plaintext import PlaintextClient
from dordis.protocols.plaintext.messages import Begin, Contribute, Disclose

IDS = (1, 2, 3, 4, 5)
P = agree_on(
    run=bytes(32), index=0, clients=IDS, threshold=3, tolerance=2, bits=13, ends=[4], scheme=Scheme.SINGLE,
    variances=[50],
)  # fmt: skip
DUE = [u for u, ks in P.due(0, IDS).items() if ks]
VECTOR = np.arange(4, dtype=np.uint32)


def begun(u, issued=None):
    client = PlaintextClient(u, NoisyInput(VECTOR), issued)
    client.handle(Begin(P))
    return client


def test_parameters_that_break_a_rule_are_refused():
    with pytest.raises(ParametersRefused):
        PlaintextClient(1, NoisyInput(VECTOR)).handle(Begin(replace(P, threshold=0)))


def test_given_secrets_are_kept_and_the_input_has_their_noise():
    issued = draw_secrets(P.escrow(0), lambda size: b"s" * size)
    client = begun(1, {0: issued})
    sent = client.handle(Contribute(0)).vector
    assert client.issued(0) == issued
    assert np.array_equal(np.frombuffer(sent, "<u4"), NoisyInput(VECTOR).chunk(P, 0, issued))


@pytest.mark.parametrize("u", IDS)
def test_due_secrets_are_disclosed_and_no_others(u):
    client = begun(u)
    client.handle(Contribute(0))
    seeds = client.handle(Disclose(0, P.pack(IDS))).seeds
    assert seeds == {k: client.issued(0).deposited[k] for k in P.due(0, IDS)[u]}
    assert bool(seeds) is (u in DUE)


def test_a_client_outside_u3_discloses_nothing():
    client = begun(1)
    client.handle(Contribute(0))
    with pytest.raises(ProtocolError, match="not in it"):
        client.handle(Disclose(0, P.pack(IDS[1:])))
