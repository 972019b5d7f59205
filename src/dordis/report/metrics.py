"""Metrics of a run for Prometheus; needs the extra `metrics`."""

from collections.abc import Iterator
from typing import Any

from dordis.errors import MissingExtra
from dordis.report.live import Snapshot


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
