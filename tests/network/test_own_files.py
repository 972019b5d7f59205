"""Four hospitals with a CSV file each, by the commands that they use: keys, serve, join, rotate, resume, succeed."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dordis.apps.learning import Client
from dordis.records.run_records import load_run
from tests.cli.in_process import dordis
from tests.network.forked_processes import HANG

pytestmark = [pytest.mark.network, pytest.mark.slow]

ROWS, HOSPITALS = 75, 4
CONFIG = """\
name = "wards"
[app]
client = "tests.network.test_own_files:Counting"
[app.options]
data = "patients.csv"
own_files = true
epochs = 1
batch = 25
[app.options.table]
label = "ill"
client = "hospital"
ranges = { age = [0, 100], pressure = [60, 200] }
categories = { ill = ["no", "yes"] }
[federation]
clients = 4
per_round = 4
rounds = 3
[privacy]
epsilon = 20
[deployment]
host = "127.0.0.1"
port = 0
train_seconds = 0.5
wait = 600
test = "public.csv"
"""


class Counting(Client):
    """The built-in client; it writes the rows of every gradient to a file, with the run and the round."""

    def prepare_data(self, round, model):
        """Train, and note the rows of each batch."""
        slope, used = self._model.slope, []

        def noting(x, y, offset):
            used.extend([*row, float(label)] for row, label in zip(x.tolist(), y.tolist(), strict=True))
            return slope(x, y, offset)

        self._model.slope = noting
        update = super().prepare_data(round, model)
        self._model.slope = slope
        with Path(os.environ.get("COUNTED", os.devnull)).open("a") as file:
            file.write(json.dumps({"run": round.run.hex(), "index": round.index, "rows": used}) + "\n")
        return update


class Federation:
    """An authority, a server and four hospitals in a folder, and their processes."""

    def __init__(self, folder):
        self.folder, self.keys, self.url = folder, {u: f"h{u}.key" for u in range(1, HOSPITALS + 1)}, ""
        self.processes = []
        (folder / "wards.toml").write_text(CONFIG)
        self.command("keys", "ca", "federation")
        self.command("keys", "request", "server.key", "--server", "localhost")
        for key in self.keys.values():
            self.command("keys", "request", key)
        self.command("keys", "approve", "federation", "server.request", *(f"h{u}.request" for u in self.keys))
        rng = np.random.default_rng(8)
        for name in (*(f"ward{u}.csv" for u in self.keys), "public.csv"):
            self.write_rows(folder / name, rng)

    @staticmethod
    def write_rows(path, rng):
        age, pressure = rng.uniform(20, 100, ROWS).round(2), rng.uniform(70, 190, ROWS).round(2)
        ill = np.where(age / 100 + pressure / 200 > 1.25, "yes", "no")
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("ill", "age", "pressure"), *zip(ill, age, pressure, strict=True)])

    def command(self, *arguments, code=0):
        done = dordis(*arguments, cwd=self.folder)
        assert done.returncode == code, done.stderr
        return done.stdout

    def start(self, log, *arguments, **options):
        environment = os.environ | {"COUNTED": str(self.folder / f"{log}.counted")}
        command = [sys.executable, "-m", "dordis", *map(str, arguments)]
        with (self.folder / log).open("a") as stderr:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=stderr, text=True, **options)
        self.processes.append(process)
        return process

    def serve(self, *options):
        """Start a server, and wait until it listens."""
        files = ("--identity", "server.key", "--registry", "federation/registry.json", "--yes")
        server = self.start("server.log", "serve", *files, *options, stdout=subprocess.PIPE)
        port = next(m[1] for line in server.stdout if (m := re.search(r"listening at .*:(\d+)", line)))
        self.url = f"https://localhost:{port}"
        return server

    def join(self, u, *options):
        """Return the arguments by which a hospital joins."""
        files = ("--identity", self.keys[u], "--registry", "federation/registry.json", "--config", "wards.toml")
        return ("join", self.url or "https://localhost:1", *files, "--data", f"ward{u}.csv", "--budget", "50", *options)

    def join_all(self):
        return [self.start(f"h{u}.log", *self.join(u), stdout=subprocess.DEVNULL) for u in self.keys]

    def check(self, u):
        return json.loads(self.command(*self.join(u, "--check", "--json")).splitlines()[-1])

    def counts(self):
        """Return what each owner has counted: epsilon and participations."""
        found = {}
        for u in self.keys:
            spending = self.check(u)["spending"]
            numbers = re.fullmatch(r"this client has spent epsilon (\S+) of 50 at .* in (\d+) rounds over .*", spending)
            assert numbers, spending
            found[u] = float(numbers[1]), int(numbers[2])
        return found

    def charged(self, run):
        """Return the epsilon of each client in the ledger of a run."""
        clients = json.loads(self.command("ledger", "verify", run, "--json"))["clients"]
        return {int(u): epsilon for u, epsilon in clients.items()}

    def rotate(self, u, *options):
        """Give a hospital new keys."""
        old, new = self.keys[u], f"h{u}-{len(options)}.key"
        self.command("keys", "rotate", old, new, *options)
        self.command("keys", "approve", "federation", Path(new).with_suffix(".request"))
        self.keys[u] = new

    @property
    def run(self):
        return max((self.folder / "runs" / "wards").iterdir())

    def stop(self):
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path)
    yield made
    made.stop()


def expected_rows(folder):
    """Return the rows of all files, scaled by hand."""
    rows = Counter()
    for u in range(1, HOSPITALS + 1):
        with (folder / f"ward{u}.csv").open() as file:
            for row in csv.DictReader(file):
                scaled = (float(row["age"]) / 50 - 1, (float(row["pressure"]) - 60) / 70 - 1, row["ill"] == "yes")
                rows[tuple(round(float(x), 9) for x in scaled)] += 1
    return rows


def test_four_hospitals_use_every_row_once_a_round_and_their_counts_survive_keys_restarts_and_successors(federation):
    told = federation.check(1)["data"]
    assert told["rows"] == "75 used"
    assert told["column age"] == "range 0 .. 100"
    assert federation.counts() == dict.fromkeys(federation.keys, (0.0, 0))

    server, clients = federation.serve("wards.toml"), federation.join_all()
    next(line for line in server.stdout if line.startswith("round 1:"))
    for process in (server, *clients):
        process.send_signal(signal.SIGKILL)
        process.wait(HANG)
    before = federation.counts()
    federation.rotate(1)  # the TLS key: valid in the run under way
    assert federation.counts() == before
    server = federation.serve("--resume", federation.run)
    clients = federation.join_all()
    server.communicate(timeout=HANG)
    assert server.returncode == 0, (federation.folder / "server.log").read_text()[-3000:]
    first = federation.run
    after, charged = federation.counts(), federation.charged(first)
    for u, (epsilon, rounds) in after.items():
        assert rounds >= 3
        assert epsilon == pytest.approx(charged[u], rel=1e-3)
    report = (first / "report.html").read_text()
    assert "4 hospitals, each with its own file" in report
    assert "accuracy" in load_run(first).metrics[-1].values  # measured on deployment.test

    for process in clients:
        process.kill()
    federation.rotate(2, "--identity")
    assert federation.counts() == after
    server = federation.serve("wards.toml", "--succeed", first, "-c", "federation.rounds=5", "-c", "privacy.epsilon=40")
    (federation.folder / "wards.toml").write_text(
        CONFIG.replace("rounds = 3", "rounds = 5").replace("epsilon = 20", "epsilon = 40")
    )
    federation.join_all()
    server.communicate(timeout=HANG)
    assert server.returncode == 0, (federation.folder / "server.log").read_text()[-3000:]
    assert federation.run != first
    for u, (epsilon, rounds) in federation.counts().items():
        assert rounds == after[u][1] + 2
        assert epsilon > after[u][0]

    wanted, used = expected_rows(federation.folder), {}
    stores = load_run(first), load_run(federation.run)
    for path in federation.folder.glob("*.counted"):
        for line in map(json.loads, path.read_text().splitlines()):
            if set(line["run"]) != {"0"}:  # not a rehearsal before joining
                rounds = used.setdefault((line["run"], line["index"]), {})
                rounds[path.name] = Counter(tuple(round(x, 9) for x in row) for row in line["rows"])
    finished = [(stored.id.hex(), record.index) for stored in stores for record in stored.rounds]
    assert len(finished) == 5
    for key in finished:
        assert len(used[key]) == HOSPITALS
        assert sum(used[key].values(), Counter()) == wanted
    assert wanted.total() == HOSPITALS * ROWS
