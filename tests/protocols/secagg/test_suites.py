"""SecAgg with other suites of primitives: all computations use the given suite."""

import ast
from pathlib import Path

import numpy as np
import pytest

import dordis.protocols.secagg
from dordis.crypto.suite import DEFAULT
from dordis.errors import Unrecoverable
from dordis.pipeline import executor as drive
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import PrivateServer
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg import SecAggServer
from tests.crypto.suites import CHACHA, TWISTED, counting
from tests.protocols.rounds import Round, make_client, random_inputs, registry

LOSSES = [(1, "CollectInput", 0), (4, "Unmask", 0), (5, "Unmask", 1)]
SUITES = {"ChaCha20-Poly1305": CHACHA, "twisted": TWISTED}


class OnSuite(Round):
    """A round in which all use the suite, or some another, and some are lost."""

    def __init__(self, parameters, suite, suites=None):
        inputs = random_inputs(parameters, 3)
        machines = {u: make_client(parameters, u, x, suite=(suites or {}).get(u, suite)) for u, x in inputs.items()}
        super().__init__(parameters, inputs, LOSSES, clients=machines)
        self.server = PrivateServer(SecAggServer(parameters, registry(parameters), suite=suite), parameters)


def agreed(mode):
    return agree_on(
        mode=mode, run=bytes(32), index=2, clients=range(1, 9), threshold=5, tolerance=2, bits=20, ends=[6, 15],
        scheme=Scheme.SINGLE, variances=[40, 50],
    )  # fmt: skip


@pytest.mark.parametrize("mode", [SEMI_HONEST, MALICIOUS])
@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_the_sum_is_right_on_any_suite(mode, suite):
    session = OnSuite(agreed(mode), suite)
    outputs = session.run()
    assert not session.exchange.errors
    assert outputs[0].survivors == (2, 3, 4, 5, 6, 7, 8)
    for output, expected in zip(outputs, session.expected(outputs), strict=True):
        assert np.array_equal(output.total, expected)
        assert not output.named
        assert not output.stayed


def test_every_primitive_is_called_through_the_suite():
    suite, calls = counting()
    session = OnSuite(agreed(MALICIOUS), suite)
    session.run()
    assert {
        "agreement.generate", "agreement.public_key", "agreement.validate", "agreement.agree",
        "cipher.encrypt", "cipher.decrypt",
        "sharing.split", "sharing.to_bytes", "sharing.from_bytes", "sharing.Interpolation",
        "prg.add_masks", "signature.sign", "signature.verify",
    } == calls.keys()  # fmt: skip
    assert calls["cipher.encrypt"] == calls["cipher.decrypt"] == 8 * 7
    assert calls["sharing.split"] == 8
    assert calls["prg.add_masks"] == 8 + 8 + 2  # one for each prepared upload, and the server's of each chunk


def test_nothing_of_the_package_goes_past_the_suite():
    allowed = {("dordis.crypto", "kdf"), ("dordis.crypto.prg", "check_ring")}
    for path in Path(dordis.protocols.secagg.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("dordis.crypto"):
                used = {(node.module, name.name) for name in node.names}
                assert node.module == "dordis.crypto.suite" or used <= allowed, path
            assert not isinstance(node, ast.Import) or "dordis" not in node.names[0].name


def test_clients_on_another_suite_are_accused_and_nothing_is_uploaded():
    session = OnSuite(agreed(SEMI_HONEST), DEFAULT, {3: CHACHA})
    with pytest.raises(Unrecoverable) as failure:
        drive.run(session.server, session.exchange)
    assert all(3 in pair for pair in failure.value.accusations)
    assert all(not client.state.survivors for client in session.clients.values())
