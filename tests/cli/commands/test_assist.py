"""dordis assist before it connects: a helper's files are read, and mistakes get one line."""

import pytest

from tests.cli.in_process import dordis
from tests.network.local_server import enrol


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), 1)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("clients = 'many'", "is not a helper's policy"),
        ("clientele = 3", "clientele"),
        ("= 3", "is not a helper's policy"),
        (None, "cannot read the policy"),
    ],
)
def test_a_policy_that_cannot_be_read_is_one_line(folder, tmp_path, policy, told):
    path = tmp_path / "policy.toml"
    if policy is not None:
        path.write_text(policy)
    done = dordis("assist", "https://localhost:1", "--identity", folder / "c1.key", "--policy", path, cwd=folder)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
