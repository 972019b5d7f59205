"""What a node trains on has one digest: any change of it shows, and Flower's own encoding is none."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = pytest.mark.flower

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from dordis.integrations.flower.messages import digest_content, digest_environment, digest_training
from tests.integrations.flower.apps import carried, model, record_of

APP = Path(__file__).parents[3] / "examples" / "flower_app"
CONFIG = {"lr": 0.5, "steps": 3, "name": "a", "data": b"\0", "rates": [0.5, 1.0], "on": True}


def content(**config) -> RecordDict:
    records = {"arrays": model(), "config": ConfigRecord(CONFIG | config), "metrics": MetricRecord({"loss": 1.0})}
    return RecordDict(records)


CHANGES = {
    "a float": content(lr=0.25),
    "a type": content(steps=3.0),
    "a truth": content(on=1),
    "a list": content(rates=[1.0, 0.5]),
    "bytes": content(data=b"\1"),
    "one entry more": content(more=0),
    "a metric": RecordDict({**content(), "metrics": MetricRecord({"loss": 2.0})}),
    "a name": RecordDict({"arrays": model(), "configs": ConfigRecord(CONFIG), "metrics": MetricRecord({"loss": 1.0})}),
    "one record more": RecordDict({**content(), "more": ConfigRecord()}),
    "an order": RecordDict(dict(reversed(content().items()))),
    "a number": RecordDict({**content(), "arrays": model(1.5)}),
    "a type of numbers": RecordDict(
        {**content(), "arrays": record_of({name: array.numpy().astype("f8") for name, array in model().items()})}
    ),
    "an order of arrays": RecordDict({**content(), "arrays": ArrayRecord(dict(reversed(model().items())))}),
    "a shape": RecordDict(
        {**content(), "arrays": ArrayRecord({**model(), "bias": Array(np.ones((1, 4), np.float32))})}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_the_records_changes_the_digest(change):
    assert digest_content(content()) != digest_content(CHANGES[change])


def test_the_digest_is_that_of_what_arrives():
    sent = content()
    assert digest_content(sent) == digest_content(carried(sent))
    assert digest_content(sent) == digest_content(RecordDict({**sent, "dordis": ConfigRecord({"count": 0})}))


def test_the_environment_is_the_run_its_config_and_its_bundle(monkeypatch, tmp_path):
    def environment(run=1, **config) -> bytes:
        return digest_environment(Context(run, 5, {}, RecordDict(), config))

    assert environment(a=1, b=2) == environment(b=2, a=1)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    digests = {environment(a=1), environment(a=2), environment(a=1.0), environment(2, a=1), environment(a=1, b=1)}
    for hashed in ("0011aabb", "0011aabc"):
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "apps" / f"me.app.1.0.0.{hashed}")])
        digests.add(environment(a=1))
    assert len(digests) == 7
    assert len({digest_training(content(), digest).tobytes() for digest in digests}) == 7


LOAD = """
import sys
from pathlib import Path
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab
from flwr.clientapp.utils import get_load_client_app_fn
from dordis.integrations.flower.messages import bundle_name
import hashlib
fab = build_fab_from_disk(Path(sys.argv[1]))
install_from_fab(fab, skip_prompt=True)
hashed = hashlib.sha256(fab).hexdigest()
before = bundle_name(sys.path)
get_load_client_app_fn("", None, True)("dordis/private-digits", "1.0.0", hashed)
print(repr(before), bundle_name(sys.path), hashed[:8])
"""


@pytest.mark.slow
def test_the_bundle_that_flower_loads_an_app_from_is_found(tmp_path):
    """In a process of its own, by what a SuperNode's process does."""
    environment = {"FLWR_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    command = [sys.executable, "-c", LOAD, str(APP)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, name, hashed = done.stdout.splitlines()[-1].split()
    assert (before, name) == ("''", f"dordis.private-digits.1.0.0.{hashed}")
