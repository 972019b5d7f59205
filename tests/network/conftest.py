"""Fixtures of the network tests: forked processes, an enrolled federation, local servers."""

import pytest

from tests.network.forked_processes import ForkedProcesses
from tests.network.local_server import LocalServer, enrol


@pytest.fixture(scope="session")
def processes():
    """Processes forked from one that has imported and compiled everything."""
    forked = ForkedProcesses()
    yield forked
    forked.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A federation of eleven clients, which no test changes."""
    return enrol(tmp_path_factory.mktemp("federation"), 11)


@pytest.fixture
def serving():
    """Start servers, which are closed at the end of the test."""
    servers = []

    def start(folder, **options):
        servers.append(LocalServer(folder, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def local(serving, folder):
    """A server with mutual TLS."""
    return serving(folder)


@pytest.fixture
def challenging(serving, folder):
    """A server that requires no certificate in TLS, so that anybody can send requests."""
    return serving(folder, mutual=False)
