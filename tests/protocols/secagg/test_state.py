"""Secrets of a client are not shown in a repr, and are erased when the round is over."""

import gc
import weakref

import numpy as np
import pytest

from dordis import protocol_driver as drive
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.secagg.messages import (
    CollectInput,
    DeliverShares,
    MaskedInput,
    NoiseShares,
    PrepareInput,
    ShareKeys,
    Unmask,
    Unmasking,
)
from tests.protocols.rounds import Round, make_client, random_inputs

P = agree_on(
    run=bytes(32), index=1, clients=range(1, 6), threshold=3, tolerance=1, bits=16, ends=[3],
    scheme=Scheme.SINGLE, variances=[9],
)  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        MaskedInput(0, b"secret", b"secret"),
        Unmasking(0, b"secret", b"secret", {0: b"secret"}),
        NoiseShares(0, b"secret"),
    ],
)
def test_what_is_disclosed_is_not_in_the_representation(message):
    assert "secret" not in repr(message)
    assert repr(message) == f"<{type(message).__name__}>"
    assert "secret" not in f"{[message]}"


@pytest.mark.parametrize("stop", [ShareKeys, DeliverShares, PrepareInput, CollectInput, Unmask])
def test_a_client_that_leaves_drops_its_vector_and_what_it_made_of_it(stop):
    inputs = random_inputs(P, 1)
    vector = np.array(inputs[2])
    client, held = make_client(P, 2, vector), weakref.ref(vector)
    session = Round(P, inputs, clients={2: client})
    del vector

    def exchange(requests):
        if any(type(request) is stop for request in requests.values()):
            raise InterruptedError
        return session.exchange(requests)

    with pytest.raises(InterruptedError):
        drive.run(session.server, exchange)
    assert held() is not None
    client.close()
    gc.collect()
    assert held() is None
    assert not client._prepared
    assert not client._agreed
    assert not client.state.secrets
