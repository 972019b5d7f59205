"""The web server of the live page and of metrics for Prometheus; other machines need a token.

The server runs on an event loop in a thread of its own and only reads the state of the run, so that it cannot hold up a
round.
"""

import asyncio
import hmac
import ipaddress
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from importlib import resources
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from dordis.errors import InputError, MissingExtra
from dordis.records.manifest import Manifest
from dordis.report.live import LiveRun, Snapshot
from dordis.report.page import render_charts, render_live

PAUSE, HEARTBEAT = 0.5, 2.0
"""Seconds between two checks for changes of the state, and seconds after which the state is sent even if only the
elapsed times in it have changed.
"""
MOST_READERS = 64
"""Largest number of open pages that receive updates at the same time."""
CHART_SHARE = 20
"""Least pause before charts are drawn again, as a multiple of the time that the latest drawing took."""
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Result = TypeVar("Result")


class LivePage:
    """The web server of a run: live page (`/`, `/events`, `/charts`), `/metrics`, and probes (`/healthz`, `/readyz`).

    Without a `token` the server listens on this machine only, and answers only requests whose host name is this
    machine.  `is_ready` returns the reason why no round can begin, or empty text if a round can begin.
    """

    def __init__(
        self,
        live: LiveRun,
        manifest: Manifest,
        token: str = "",
        is_ready: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._manifest, self._token, self._is_ready, self._clock = live, manifest, token, is_ready, clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dordis page", daemon=True)
        self._runner: web.AppRunner | None = None
        self._readers = 0
        self._closing = False
        self._charts: tuple[int, float, str] = (-1, -1.0, "")
        self.port = 0

    def start(self, host: str, port: int) -> str:
        """Listen at an address (port 0 is any free port), and return the URL of the page."""
        if not self._token and not is_loopback(host):
            raise InputError(f"without a token the page is for this machine only: listen at 127.0.0.1, not at {host}")
        self._thread.start()
        self._perform(self._listen(host, port))
        query = f"?token={self._token}" if self._token else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{query}"

    def stop(self) -> None:
        """Send the final state to all open pages, and stop the server."""
        if self._thread.is_alive():
            self._perform(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    def _perform(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self, host: str, port: int) -> None:
        app = web.Application(middlewares=[self._guard])
        routes = {"/": self._page, "/live.js": self._script, "/events": self._events, "/charts": self._draw}
        routes |= {"/metrics": self._metrics, "/readyz": self._ready, "/healthz": self._healthy}
        app.add_routes([web.get(path, handler) for path, handler in routes.items()])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            raise InputError(f"the page cannot listen at {host}:{port}: {error.strerror}") from None
        self.port = int(self._runner.addresses[0][1])

    async def _close(self) -> None:
        self._closing = True
        for _ in range(20):
            if not self._readers:
                break
            await asyncio.sleep(0.1)
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse requests without the token; if no token is set, refuse foreign host names, against DNS rebinding.

        Requests for `/healthz` and `/live.js` are always answered.
        """
        if request.path not in ("/healthz", "/live.js"):
            check_access(request, self._token)
        response: web.StreamResponse = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text=render_live(self._manifest), content_type="text/html")

    async def _script(self, request: web.Request) -> web.Response:
        script = resources.files("dordis.report").joinpath("templates", "live.js").read_text("utf-8")
        return web.Response(text=script, content_type="text/javascript")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the state of the run as server-sent events: after each change, and every HEARTBEAT seconds."""
        if self._readers >= MOST_READERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_READERS} pages are open already: close one")
        response = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
        self._readers += 1
        try:
            await response.prepare(request)
            seen, sent = -1, 0.0
            while True:
                last = self._closing
                changed, now = self._live.changes, self._clock()
                if changed != seen or now - sent >= HEARTBEAT or last:
                    state = msgspec.json.encode(self._live.snapshot())
                    await response.write(b"data: " + state + b"\n\n")
                    seen, sent = changed, now
                if last:
                    break
                await asyncio.sleep(PAUSE)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the browser closed the connection
        finally:
            self._readers -= 1
        return response

    async def _draw(self, request: web.Request) -> web.Response:
        """Return the charts; draw them again only if a round has finished since, after a pause (see CHART_SHARE)."""
        finished, now = self._live.finished, self._clock()
        drawn, again, text = self._charts
        if drawn != finished and now >= again:
            text = await asyncio.to_thread(lambda: render_charts(self._live.charts()))
            took = self._clock() - now
            self._charts = (finished, self._clock() + CHART_SHARE * took, text)
        return web.Response(text=text, content_type="text/html", headers={"Rounds": str(self._charts[0])})

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            body, content_type = render_metrics(self._live.snapshot())
        except MissingExtra as error:
            raise web.HTTPNotImplemented(text=f"{error}\n") from None
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _ready(self, request: web.Request) -> web.Response:
        why = self._is_ready()
        return web.Response(text=f"{why or 'ready'}\n", status=503 if why else 200)

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")


def is_loopback(host: str) -> bool:
    """Tell whether a host is `localhost` or a loopback address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_access(request: web.Request, token: str) -> None:
    """Raise HTTP 403 unless a request has the token.

    If no token is set, the host in its URL must be `localhost` or a loopback address.
    """
    if token:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = request.query.get("token", bearer)
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise web.HTTPForbidden(text="this page needs its token: open the address that the server printed\n")
    elif not is_loopback(request.host.rsplit(":", 1)[0]):
        raise web.HTTPForbidden(text="this page is for its own machine: open it at 127.0.0.1\n")


def render_metrics(snapshot: Snapshot) -> tuple[bytes, str]:
    """Return the metrics of a run in the text format of Prometheus, and the content type of this format."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ImportError:
        raise MissingExtra("metrics") from None

    class Collector:
        def collect(self) -> Iterator[Any]:
            return collect(snapshot)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def collect(snapshot: Snapshot) -> Iterator[Any]:
    """Yield the Prometheus metrics of a snapshot; no label names a client, so that the time series stay few."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    run = {"run": snapshot.name}
    gauges = {
        "dordis_rounds_planned": ("Rounds that the run was planned for", snapshot.planned),
        "dordis_round": ("Number of the current round", snapshot.number),
        "dordis_epsilon_spent": ("Largest epsilon spent by a client", snapshot.epsilon),
        "dordis_epsilon_budget": ("Privacy budget of the run", snapshot.budget),
        "dordis_clients_connected": ("Connected clients", snapshot.connected),
        "dordis_clients_members": ("Clients of the federation", snapshot.members),
        "dordis_clients_invited": ("Clients invited to the current round", snapshot.invited),
        "dordis_clients_in_round": ("Clients in the current round", snapshot.in_round),
        "dordis_clients_evicted": ("Clients evicted for lying", len(snapshot.evicted)),
        "dordis_clients_waited_for": (
            "Clients that the current stage waits for",
            sum(len(stage.waiting) + stage.more for stage in snapshot.stages),
        ),
        "dordis_stage_seconds": (
            "Seconds since the oldest open stage began",
            max((stage.seconds for stage in snapshot.stages if stage.state == "now"), default=0.0),
        ),
        "dordis_warnings": ("Warnings that the live page shows", len(snapshot.warnings)),
        "dordis_running": ("1 during the run, 0 after its end", float(snapshot.status == "running")),
    }
    for name, (text, value) in gauges.items():
        if value is not None:
            yield _family(GaugeMetricFamily(name, text, labels=list(run)), run, value)
    for name, text, value in (
        ("dordis_rounds_finished", "Finished rounds", snapshot.finished),
        ("dordis_attempts_failed", "Failed attempts at rounds", snapshot.failed),
    ):
        yield _family(CounterMetricFamily(name, text, labels=list(run)), run, value)
    dropped = CounterMetricFamily("dordis_dropouts", "Dropouts by stage", labels=[*run, "stage"])
    for stage, count in snapshot.dropped.items():
        dropped.add_metric([*run.values(), stage], count)
    yield dropped
    measured = GaugeMetricFamily("dordis_metric", "Metrics of the application", labels=[*run, "metric"])
    for name, number in snapshot.metrics.items():
        measured.add_metric([*run.values(), name], number)
    yield measured


def _family(family: Any, labels: dict[str, str], value: float) -> Any:
    family.add_metric(list(labels.values()), value)
    return family
