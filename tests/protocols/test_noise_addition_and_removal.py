"""Distributed noise: added before the sum, removed after it, and drawn at once only at ideal fidelity."""

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import dordis
from dordis.errors import InputError
from dordis.privacy.skellam_noise import noise
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.escrow import draw_secrets
from dordis.protocols.noise_addition_and_removal import (
    ChunkOutput,
    NoisyInput,
    OneDraw,
    PrivateServer,
    remove_noise,
    unreleased,
)
from dordis.protocols.plaintext import PlaintextServer
from dordis.protocols.summing import ChunkSum

IDS, BITS = (1, 2, 3, 4, 5), 20
SPANS = (slice(0, 6), slice(6, 16))


def agreed(scheme=Scheme.EXACT):
    return agree_on(
        run=bytes(32), index=0, clients=IDS, threshold=3, tolerance=2, colluders=1, bits=BITS, ends=[6, 16],
        scheme=scheme, variances=[50, 70],
    )  # fmt: skip


def secrets_of(parameters, chunk, client):
    counter = iter(range(100))
    return draw_secrets(parameters.escrow(chunk), lambda size: bytes([client, chunk, next(counter)]).ljust(size))


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG, Scheme.NONE])
@pytest.mark.parametrize("chunk", [0, 1])
def test_an_input_is_its_chunk_and_one_component_of_noise_for_every_secret(scheme, chunk):
    parameters = agreed(scheme) if scheme is not Scheme.NONE else agree_on(
        run=bytes(32), index=0, clients=IDS, threshold=3, tolerance=2, colluders=1, bits=BITS, ends=[6, 16]
    )  # fmt: skip
    vector = np.arange(16, dtype=np.uint32)
    plan, issued = parameters.plans[chunk], secrets_of(parameters, chunk, 1)
    expected = vector[SPANS[chunk]].astype(np.int64)
    for seed, variance in zip(issued.private + issued.deposited, plan.base + plan.removable, strict=True):
        expected = expected + noise(seed, variance, expected.size)
    given = NoisyInput(vector).chunk(parameters, chunk, issued)
    assert np.array_equal(given, (expected % 2**32).astype(np.uint32))
    assert np.array_equal(vector, np.arange(16))  # the input is not touched


def test_released_noise_is_gone_and_the_rest_stays():
    parameters = agreed()
    issued = {u: secrets_of(parameters, 0, u) for u in IDS}
    zeros = np.zeros(16, np.uint32)
    total = sum((NoisyInput(zeros).chunk(parameters, 0, own) for own in issued.values()), np.zeros(6, np.uint32))
    due = parameters.escrow(0).releases(IDS)
    released = {u: {k: issued[u].deposited[k] for k in ks} for u, ks in due.items()}
    lost = released[2].pop(1)
    output = remove_noise(parameters, 0, ChunkSum(total, IDS, released))
    plan = parameters.plans[0]
    expected = sum(noise(issued[u].private[0], plan.base[0], 6).astype(np.int64) for u in IDS)
    expected += noise(lost, plan.removable[1], 6)
    assert np.array_equal(output.total, expected % 2**BITS)
    assert output.stayed == {2: (1,)}
    assert output.left == 5 * plan.base[0] + plan.removable[1]


def test_what_was_due_and_not_released_is_listed():
    due, one, other = {1: (0, 1), 2: (0,), 3: ()}, {1: {1: b""}, 2: {0: b""}}, {}
    assert unreleased(due, one) == {1: (0,)}
    assert unreleased(due, other) == {1: (0, 1), 2: (0,)}


def test_there_is_no_output_before_the_noise_is_removed():
    parameters = agreed()
    with pytest.raises(InputError, match="not removed yet"):
        PrivateServer(PlaintextServer(parameters), parameters).output()


def test_one_draw_has_the_variance_that_the_output_states():
    parameters = agree_on(
        run=bytes(32), index=0, clients=IDS, threshold=3, tolerance=2, colluders=1, bits=32, ends=[40_000],
        scheme=Scheme.SINGLE, variances=[900],
    )  # fmt: skip
    output = ChunkOutput.from_plan(parameters, 0, np.zeros(40_000, np.uint32), IDS, {})
    OneDraw(lambda size: bytes(range(size))).add(parameters, output)
    drawn = output.total.view(np.int32).astype(np.float64)
    assert output.left == pytest.approx(Fraction(1350), rel=1e-4)
    assert np.mean(drawn**2) == pytest.approx(float(output.left), rel=0.05)  # seven standard deviations


def test_nothing_but_ideal_fidelity_draws_all_noise_at_once():
    """One draw would be a server's own noise: only a simulation of ideal fidelity may name it."""
    source = Path(dordis.__file__).parent
    users = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Name) and node.id == "OneDraw")
        or (isinstance(node, ast.Attribute) and node.attr == "OneDraw")
        or (isinstance(node, ast.ImportFrom) and any(alias.name == "OneDraw" for alias in node.names))
    }
    assert users == {"simulation/ideal.py"}
