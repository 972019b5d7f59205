"""The metrics of a run are readable by Prometheus' own parser."""

from prometheus_client.parser import text_string_to_metric_families

from dordis.report.live import LiveRun
from dordis.report.metrics import render_metrics
from dordis.rounds.watch import StageBegan
from dordis.simulation.run import prepare
from tests.simulation.whole_runs import settings_of


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
