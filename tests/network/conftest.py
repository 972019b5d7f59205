"""One process that all processes of the network's tests are forked from."""

import pytest

from tests.network.zygote import Zygote


@pytest.fixture(scope="session")
def zygote():
    process = Zygote()
    yield process
    process.close()
