"""examples/hospitals/demo.py: it ends with a reason if a hospital refuses to take part, and otherwise as its server."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "hospitals" / "demo.py"
STAND_IN = """
import sys, time
words = sys.argv[1:]
if words[0] == "serve" and "-c" in words:
    print("the run is over", flush=True)
    sys.exit(0)
if "hospital-02.key" in words and "-c" not in words:
    print("joining\\ndordis: 200 patients, and the terms have 100", file=sys.stderr)
    sys.exit(2)
print("waiting", flush=True)
time.sleep(600)
"""
"""In place of dordis: the second hospital refuses, everybody else waits; with -c nobody refuses and the server ends."""


@pytest.fixture
def demo(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("hospitals_demo", DEMO)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "dordis.py").write_text(STAND_IN)
    module.DORDIS = [sys.executable, str(tmp_path / "dordis.py")]
    return module


def test_the_demo_ends_with_the_reason_of_a_hospital_that_refuses(demo, tmp_path, capfd):
    assert demo.run(tmp_path, ["hospital-01", "hospital-02", "hospital-03"], 0, []) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "hospital-02 refused to take part: 200 patients, and the terms have 100"


def test_the_demo_ends_as_its_server_if_nobody_refuses(demo, tmp_path, capfd):
    assert demo.run(tmp_path, ["hospital-01", "hospital-02"], 0, ["-c", "a=1"]) == 0
    assert capfd.readouterr().err == ""


def test_a_hospital_without_a_reason_is_named_all_the_same(demo, tmp_path):
    (tmp_path / "empty.log").write_text("\n")
    assert demo.read_reason(tmp_path / "empty.log") == "it left no reason in its log"


def test_a_hospital_that_was_killed_stops_nobody(demo):
    waiting = [sys.executable, "-c", "input()"]
    server = subprocess.Popen(waiting, stdin=subprocess.PIPE, text=True)
    client = subprocess.Popen(waiting, stdin=subprocess.DEVNULL)
    client.kill()
    refused = []
    demo.watch("hospital-01", client, server, refused)
    assert server.poll() is None
    server.communicate("\n")
    assert (refused, server.returncode) == ([], 0)
