"""The live page in Chromium: it follows a run, names who is waited for, survives a restart, and is closed to others."""

import http.client
import itertools
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dordis.config.reading import config_to_toml
from dordis.errors import InputError
from dordis.report import live_server
from dordis.report.live import LiveRun
from dordis.report.live_server import LivePage, render_metrics
from dordis.rounds.watch import StageBegan
from dordis.simulation.run import prepare
from tests.case_samples import sample_cases
from tests.network.conftest import processes as processes
from tests.network.deployed_commands import wait_until
from tests.network.deployed_run import DeployedRun
from tests.network.process_roles import settings
from tests.simulation.whole_runs import settings_of

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HANG = 120_000.0
"""Milliseconds after which a missing event fails a test."""
SHOTS = os.environ.get("DORDIS_SCREENSHOTS")
"""A folder for screenshots, which docs show; none are taken without it."""
PRIVATE_PATHS = ("", "events", "charts", "metrics", "readyz")


@pytest.fixture(scope="module")
def chromium():
    """Return a headless Chromium."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """Return a page that collects its errors, which must be none at the end."""
    errors = []
    page = chromium.new_page(viewport={"width": 1000, "height": 1250})
    page.set_default_timeout(HANG)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


@pytest.fixture
def run(tmp_path: Path):
    return prepare(settings_of("simulation.fidelity=full")).start(tmp_path, "")


@pytest.fixture
def served(run):
    """Return a run, its live state, its page, and the address of that, at a free port of this machine."""
    live = LiveRun(run.records.path)
    page = LivePage(live, run.records.manifest)
    yield run, live, page, page.start("127.0.0.1", 0)
    page.stop()


def rounds_of(run, live):
    """Run rounds in another thread: Playwright keeps an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        rounds = run.rounds(live.watch)
        while (finished := thread.submit(next, rounds, None).result()) is not None:
            live.finish_round(finished.record, finished.metrics)
            yield finished


def finish_rounds(run, live):
    assert len(list(rounds_of(run, live))) > 1


def shoot(page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


def has_text(page, selector: str, text: str):
    return page.locator(selector).filter(has_text=text).first


@pytest.mark.browser
def test_it_follows_a_run_round_by_round_and_ends_with_it(served, opened):
    run, live, page, url = served
    opened.goto(url)
    has_text(opened, "#round", "Waiting for the first round").wait_for()
    for finished in rounds_of(run, live):
        has_text(opened, "#tiles", f"{finished.record.number} of").wait_for()
        opened.locator(f"#rounds tr:has(th:text-is('{finished.record.number}'))").wait_for()
        opened.locator("#charts figure[data-chart=epsilon] svg").wait_for()
    assert opened.locator("#stages li.done").count() > 4
    assert "collect input" in opened.locator("#stages").inner_text()
    live.end("has finished all rounds")
    has_text(opened, "#connection", "has finished all rounds").wait_for()
    page.stop()
    has_text(opened, "#connection", "this is its last state").wait_for()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1200, "dark")])
def test_it_fits_narrow_screens_and_is_dark_where_that_is_preferred(served, chromium, width, scheme):
    run, live, _, url = served
    finish_rounds(run, live)
    live.warn("a warning of many words, " * 10)
    shown = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    shown.set_default_timeout(HANG)
    shown.goto(url)
    shown.locator("#charts figure").first.wait_for()
    assert shown.evaluate("() => document.documentElement.scrollWidth") <= width
    colour = shown.evaluate("() => getComputedStyle(document.body).backgroundColor")
    red, green, blue = map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))
    assert (red + green + blue < 150) == (scheme == "dark")
    shown.close()


@pytest.mark.browser
def test_a_screen_reader_finds_headings_names_and_what_changes(served, opened):
    run, live, _, url = served
    finish_rounds(run, live)
    live.warn("the loss rises")
    opened.goto(url)
    opened.locator("#charts figure").first.wait_for()
    assert opened.get_by_role("heading", level=1).inner_text() == run.records.manifest.name
    assert "the loss rises" in opened.get_by_role("alert").inner_text()
    assert opened.get_by_role("status").inner_text() == "live"
    bars = opened.get_by_role("progressbar")
    assert bars.count() > 4
    assert opened.locator("progress:not([aria-label])").count() == 0
    for chart in opened.locator("#charts svg").all():
        assert chart.get_attribute("role") == "img"
        assert chart.get_attribute("aria-label") or chart.locator("title").count()
    assert "finished" in opened.locator("#spoken[aria-live=polite]").inner_text()
    assert opened.locator("table th[scope=col]").count() >= 4


class PagedServer:
    """`dordis serve --page` as a process; a restarted one keeps both ports."""

    def __init__(self, fleet: DeployedRun, *arguments: object, page: str = "127.0.0.1:0") -> None:
        files = "--identity", fleet.folder / "server.key", "--registry", fleet.folder / "registry.json"
        command = [sys.executable, "-m", "dordis", "serve", *arguments, *files, "--page", page]
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("watch it at "):
                self.url = line.split()[-1]
            if line.startswith("listening at "):
                fleet.port = int(line.rsplit(":", 1)[1])
                break

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.browser
@pytest.mark.network
@pytest.mark.slow
def test_a_deployed_run_names_a_stuck_client_and_survives_a_restart(processes, opened, tmp_path):
    keys = ["federation.rounds=3", "deployment.wait=600", "deployment.deadlines.grace=600"]
    fleet = DeployedRun(processes, tmp_path, 5, [*keys, "deployment.deadlines.stage=600"])
    config, held, go = tmp_path / "deployment.toml", fleet.pipe("held"), fleet.pipe("go")
    config.write_text(config_to_toml(settings([*fleet.keys, f"output={tmp_path / 'runs'}"])))
    server = PagedServer(fleet, config)
    try:
        opened.goto(server.url)
        has_text(opened, "#tiles", "0 of 3").wait_for()
        fleet.join(1, cut=[2, "CollectInput", str(held), str(go)])
        fleet.join_missing()
        held.read_text()  # in round 2, the client has been asked for its upload
        has_text(opened, "#warnings", "Round 2 waits for client 1 at 'collect input'").wait_for()
        has_text(opened, "#stages li.stuck", "waiting for client 1").wait_for()
        shoot(opened, "stuck")
        server.kill()
        has_text(opened, "#connection", "connection lost").wait_for()
        (resumed,) = (tmp_path / "runs" / "digits").iterdir()
        at = server.url.removeprefix("http://").rstrip("/")
        server = PagedServer(fleet, "--resume", resumed, "-c", f"deployment.port={fleet.port}", page=at)
        has_text(opened, "#connection", "live").wait_for()
        opened.locator("#rounds tr:has(th:text-is('1'))").wait_for()  # from before the restart
        go.write_text("on")
        has_text(opened, "#connection", "has finished all rounds").wait_for()
        assert opened.locator("#rounds tr").count() == 3
        shoot(opened, "finished")
        assert server.process.wait() == 0
    finally:
        server.kill()
        fleet.kill_clients()


def ask(url: str, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=HANG / 1000)
    connection.request("GET", f"/{path}", headers=headers)
    answer = connection.getresponse()
    told = answer.status, answer.read().decode(), dict(answer.headers)
    connection.close()
    return told


def test_machines_ask_for_health_readiness_and_metrics(run):
    reasons = itertools.chain(["2 clients are connected, 5 are needed"], itertools.repeat(""))
    page = LivePage(LiveRun(run.records.path), run.records.manifest, is_ready=lambda: next(reasons))
    url = page.start("127.0.0.1", 0)
    try:
        assert ask(url, "healthz")[:2] == (200, "ok\n")
        assert ask(url, "readyz")[:2] == (503, "2 clients are connected, 5 are needed\n")
        assert ask(url, "readyz")[:2] == (200, "ready\n")
        status, text, headers = ask(url, "metrics")
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
        assert "dordis_rounds_planned" in text
        assert ask(url, "")[2]["Referrer-Policy"] == "no-referrer"
        assert ask(url, "nothing")[0] == 404
    finally:
        page.stop()


@pytest.mark.parametrize("moment", ["with the request", "when it is handled", "after the answer"])
@pytest.mark.parametrize("path", sample_cases(["healthz", "live.js", *PRIVATE_PATHS], one_in=3))
def test_a_reader_whose_connection_is_cut_leaves_no_traceback_and_no_place_taken(
    served, path, moment, caplog, monkeypatch
):
    *_, page, url = served
    if moment == "when it is handled":
        monkeypatch.setattr(live_server, "check_access", lambda request, token: request.transport.abort())
    for _ in range(10):
        connection = socket.create_connection(("127.0.0.1", page.port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        if moment == "after the answer":
            assert connection.recv(12) == b"HTTP/1.1 200"
        elif moment == "with the request":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        connection.close()
    assert ask(url, "healthz")[0] == 200
    wait_until(lambda: not page._readers)
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []


def test_without_a_token_the_page_is_closed_to_foreign_names(served):
    *_, url = served
    for path in PRIVATE_PATHS:
        assert ask(url, path, Host="rebound.example")[0] == 403


def test_with_a_token_the_page_is_closed_to_whoever_has_it_not(run):
    page = LivePage(LiveRun(run.records.path), run.records.manifest, token="opensesame")  # noqa: S106
    url = page.start("127.0.0.1", 0).partition("?")[0]
    try:
        for path in PRIVATE_PATHS:
            assert ask(url, path)[0] == 403
            assert ask(url, f"{path}?token=other")[0] == 403
        assert ask(url, "?token=opensesame")[0] == 200
        assert ask(url, "metrics", Authorization="Bearer opensesame")[0] == 200
        assert ask(url, "healthz")[0] == 200
    finally:
        page.stop()


def test_without_a_token_it_listens_on_this_machine_only(run):
    page = LivePage(LiveRun(run.records.path), run.records.manifest)
    with pytest.raises(InputError, match="for this machine only"):
        page.start("0.0.0.0", 0)  # noqa: S104
    page.stop()


def test_an_address_in_use_is_named(served):
    run, live, page, _ = served
    other = LivePage(live, run.records.manifest)
    with pytest.raises(InputError, match=f"cannot listen at 127.0.0.1:{page.port}"):
        other.start("127.0.0.1", page.port)
    other.stop()


def test_a_scrape_has_rounds_epsilon_clients_and_dropouts(tmp_path):
    run = prepare(settings_of("simulation.fidelity=ideal")).start(tmp_path, "")
    live = LiveRun(run.records.path, connected=lambda: (1, 2, 3))
    for finished in run.rounds(live.watch):
        live.finish_round(finished.record, finished.metrics)
    live.watch(StageBegan("Unmask", (1, 2), 0))
    body, content_type = render_metrics(live.snapshot())
    assert content_type.startswith("text/plain")
    found = {
        (sample.name, sample.labels.get("metric") or sample.labels.get("stage") or ""): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    snapshot = live.snapshot()
    assert found["dordis_rounds_finished_total", ""] == snapshot.finished
    assert found["dordis_epsilon_spent", ""] == snapshot.epsilon
    assert found["dordis_clients_connected", ""] == 3
    assert found["dordis_clients_waited_for", ""] == 2
    assert found["dordis_running", ""] == 1
