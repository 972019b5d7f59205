"""`dordis report` says where the page is, and opens it if asked; `dordis status` shows runs, and a client."""

import json
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

from dordis.cli.commands.report import report
from dordis.errors import InputError
from dordis.owner.directory import ClientDirectory
from dordis.records.server_status import ConnectedClients, RunQueue, write_connected
from tests.cli.in_process import dordis
from tests.network.local_server import enrol
from tests.report.runs import make
from tests.simulation.whole_runs import TOY


def test_it_prints_the_path_and_opens_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    path = make(tmp_path)
    report([path], None, figures=False, show=False)
    assert capsys.readouterr().out == f"{path / 'report.html'}\n"
    assert opened == []
    assert not (path / "figures").exists()


def test_it_opens_the_page_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    report([make(tmp_path)], tmp_path, figures=True, show=True)
    assert opened == [(tmp_path / "report.html").as_uri()]
    assert (tmp_path / "figures" / "epsilon.svg").exists()


def test_without_a_browser_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    report([make(tmp_path)], None, figures=False, show=True)
    assert "no browser" in capsys.readouterr().err


def test_a_page_is_no_directory_to_write_into(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--output takes a directory"):
        report([make(tmp_path)], tmp_path / "mine.html", figures=False, show=False)
    assert not (tmp_path / "mine.html").exists()


def test_a_missing_run_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run"):
        report([tmp_path / "nowhere"], tmp_path, figures=True, show=False)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A federation of one client, and the records of a run, as any server writes them."""
    folder = enrol(tmp_path_factory.mktemp("federation"), 1)
    done = dordis("run", *(f"-c{key}" for key in TOY), "-cname=toy", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def read(folder, path):
    done = dordis("status", path, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_shows_its_rounds_clients_and_budget(folder):
    (run,) = read(folder, "runs")["runs"]
    assert (run["name"], run["state"], run["running"]) == ("toy", "over", False)
    assert run["rounds"] == run["planned_rounds"] == 3
    assert 0 < run["epsilon_spent"] <= run["budget"]
    assert run["connected"] == []
    shown = dordis("status", "runs", cwd=folder).stdout
    assert "3 of 3" in shown
    assert "over" in shown


def test_a_run_that_another_process_has_locked_is_running_with_its_connected_clients(folder):
    (path,) = folder.glob("runs/toy/*")
    write_connected(path, ConnectedClients((2, 4), {3: {"Train": 2, "Unmask": 1}}))
    hold = (
        "import pathlib, sys; from dordis.durable_files import lock_directory as lock; lock(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", f"{hold}; print('locked', flush=True); input()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        (run,) = read(folder, path)["runs"]
        holder.communicate(b"\n")
    pid = holder.pid
    assert run["state"] == f"running (process {pid})"
    assert run["connected"] == [2, 4]
    assert run["missed_deadlines"] == {"3": {"Train": 2, "Unmask": 1}}
    assert "Train 2, Unmask 1" in dordis("status", path, cwd=folder).stdout
    (run,) = read(folder, path)["runs"]
    assert (run["state"], run["connected"]) == ("over", [])


def test_a_folder_of_configurations_shows_which_are_done(folder):
    (path,) = folder.glob("runs/toy/*")
    (folder / "queue").mkdir()
    for name in ("1.toml", "2.toml"):
        (folder / "queue" / name).touch()
    queue = RunQueue(folder / "queue")
    queue.begin("1.toml", path)
    assert read(folder, "queue")["queue"] == {"1.toml": "begun", "2.toml": "waits"}
    queue.finish("1.toml")
    shown = read(folder, "queue")
    assert shown["queue"] == {"1.toml": "done", "2.toml": "waits"}
    assert [run["name"] for run in shown["runs"]] == ["toy"]


def test_a_client_shows_its_privacy_its_certificate_and_its_last_error(folder):
    refused = dordis("status", "c1.key", cwd=folder)
    assert refused.returncode == 2
    assert "has not joined yet" in refused.stderr
    status = ClientDirectory(folder / "c1.state").status
    status.set_terms("server.example:8765", (6.0, 1e-5))
    status.note_event("")
    shown = read(folder, "c1.key")
    assert (shown["client"], shown["server"], shown["rounds"]) == (1, "server.example:8765", 0)
    assert (shown["epsilon_spent"], shown["epsilon_allowed"]) == (0.0, 6.0)
    assert 360 < shown["certificate_days"] <= 366
    assert shown["last_contact"].startswith("20")
    assert shown["last_error"] is None
    status.note_event("no connection to server.example:8765: refused; reconnecting")
    assert read(folder, "c1.key")["last_error"] == "no connection to server.example:8765: refused; reconnecting"
    assert "server.example:8765" in dordis("status", "c1.key", cwd=folder).stdout


def test_what_is_neither_a_run_nor_a_client_is_refused_in_one_line(folder):
    (folder / "empty").mkdir()
    for path, error in (("nowhere", "no directory"), ("empty", "there is no run in"), ("server.key", "is a server's")):
        done = dordis("status", path, cwd=folder)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert error in done.stderr
