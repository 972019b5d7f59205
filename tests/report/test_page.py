"""The page: every chart is there, numbers are those of the records, nothing from them is markup, nothing is loaded."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dordis.errors import InputError
from dordis.records import run_records
from dordis.records.manifest import DEPLOYED
from dordis.report.charts import LineChart, Series, draw_inline
from dordis.report.facts import LedgerCheck, read_facts
from dordis.report.figures import epsilon_chart, traffic_chart
from dordis.report.numbers import format_number
from dordis.report.page import render_report, write_overview, write_report
from tests.case_samples import sample_cases
from tests.report.runs import STRATEGIES, make, rewrite

CHARTS = ["metric_1", "metric_2", "epsilon", "dropouts", "noise_ratio", "noise", "seconds", "traffic"]
COMPARED = ["metric_1", "metric_2", "epsilon", "dropout", "noise_ratio", "seconds", "traffic"]
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collect what a page has, and fail on tags that do not fit."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1].append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def figures(self) -> list[str | None]:
        return [attributes.get("data-chart") for tag, attributes in self.tags if tag == "figure"]

    def kinds(self, kind: str) -> int:
        return sum(kind == attributes.get("class") for _, attributes in self.tags)


def report(*runs: Path) -> Page:
    return Page(render_report(read_facts(runs)))


@pytest.mark.parametrize("noise", sample_cases([*STRATEGIES], one_in=3))
def test_every_chart_is_there_for_every_strategy(tmp_path: Path, noise: str) -> None:
    found = report(make(tmp_path, noise=noise))
    assert found.figures() == CHARTS
    drawn = sum(tag == "svg" for tag, _ in found.tags)
    # Without noise there is neither noise nor epsilon to draw; rebasing has no epsilon.
    assert drawn == len(CHARTS) - {"none": 3, "rebasing": 1}.get(noise, 0)


def test_the_rounds_table_has_the_records_numbers(tmp_path: Path) -> None:
    path = make(tmp_path)
    run, rows = run_records.load_run(path), report(path).cells
    head = next(row for row in rows if row[0] == "round")
    table = {row[0]: dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head) and row != head}
    for record, metrics in zip(run.rounds, run.metrics, strict=True):
        row = table[str(record.number)]
        gone = sum(map(len, record.dropped.values()))
        assert (row["index"], row["dropped"], row["clients"]) == (str(record.index), str(gone), "50")
        assert row["accuracy"] == f"{metrics.values['accuracy']:.4g}"
        assert float(row["epsilon"]) == pytest.approx(record.epsilon, rel=1e-3)
        assert float(row["counted on"].replace(",", "")) == pytest.approx(record.charged, rel=1e-4)
        assert row["uploaded"] == str(record.survivors[0])
        assert (row["invited"], row["of it the model"]) == ("53", "3.98 MB")


def test_every_page_with_a_run_in_plaintext_says_that_it_protects_nobody(tmp_path: Path) -> None:
    exposed, masked = make(tmp_path, name="open", protocol="plaintext"), make(tmp_path, name="masked")
    for pages in ([exposed], [exposed, masked]):
        text = report(*pages).text
        assert "protocol: plaintext, malicious, protects nobody" in text
        assert text.count("The protocol 'plaintext' protects nobody: the server sees every update.") >= 4
    assert "protects nobody" not in report(masked).text


def test_the_headline_numbers_are_the_last(tmp_path: Path) -> None:
    path = make(tmp_path)
    run, found = run_records.load_run(path), report(path)
    assert run.result is not None
    assert f"{run.result.metrics['accuracy']:.4g} accuracy, last" in found.text
    assert f"{format_number(run.result.epsilon)} epsilon spent of 6" in found.text
    assert "1e-05 delta" in found.text
    mean = sum(len(gone) for record in run.rounds for gone in record.dropped.values()) / len(run.rounds) / 50
    assert f"{100 * mean:.3g} % dropout" in found.text


@pytest.mark.parametrize("fidelity", ["full", "ideal", DEPLOYED])
def test_fidelity_is_always_said(tmp_path: Path, fidelity: str) -> None:
    found = report(make(tmp_path, fidelity=fidelity))
    simulated = fidelity != DEPLOYED
    assert f"fidelity: {fidelity} (" in found.text
    assert found.kinds("badge warning") == simulated
    assert ("simulated in one process" in found.text) == simulated


def test_failed_attempts_are_listed(tmp_path: Path) -> None:
    assert ["7", "7", "19 clients answered Unmask, 26 are needed"] in report(make(tmp_path)).cells
    assert "No attempt at a finished round failed" in report(make(tmp_path, name="smooth", failing=False)).text


def test_nothing_from_the_records_is_markup(tmp_path: Path) -> None:
    path, evil = make(tmp_path), "<img src=x onerror=alert(1)>\"'&$title"
    rewrite(path, **dict.fromkeys(("name", "noise", "mechanism", "protocol", "mode", "selection", "fidelity"), evil))
    rewrite(path, terms=[evil], version=evil, created=evil)
    for name in (run_records.ROUNDS, run_records.METRICS):
        text = (path / name).read_text()
        quoted = evil.replace('"', '\\"')
        for word in ("CollectInput", "accuracy", "19 clients answered", "unmask"):
            text = text.replace(word, quoted)
        (path / name).write_text(text)
    for text in (render_report(read_facts([path])), render_report(read_facts([path, path]))):
        found = Page(text)
        assert all(tag not in ("img", "script") and "onerror" not in attributes for tag, attributes in found.tags)
        assert "<img src=x onerror=alert(1)>" in found.text


def test_nothing_is_loaded_and_nothing_runs(tmp_path: Path) -> None:
    text = render_report(read_facts([make(tmp_path)]))
    found = Page(text)
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "form"})
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on") or name == "src"]
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.slow
def test_several_runs_are_compared(tmp_path: Path) -> None:
    paths = [make(tmp_path, name=f"run-{noise}", noise=noise) for noise in STRATEGIES]
    found = report(*paths)
    assert found.figures() == COMPARED + CHARTS * len(paths)
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    rows = {row[0]: row[1:] for row in found.cells if len(row) == len(paths) + 1}
    assert rows["noise strategy"] == list(STRATEGIES)
    spent = dict(zip(STRATEGIES, rows["epsilon spent"], strict=True))
    assert spent["none"] == spent["rebasing"] == "nothing is proved"
    assert spent["orig"].endswith("OVERSPENT")
    assert 0 < float(spent["xnoise"]) < 6


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    labels = [facts.label for facts in read_facts([first, second])]
    assert len(set(labels)) == 2


def configured(path: Path, **settings: object) -> Path:
    """Give a run a configuration with these settings, which are in one section."""
    lines = (f"{key} = {json.dumps(value)}" for key, value in settings.items())
    (path / run_records.CONFIG).write_text('output = "somewhere"\n[privacy]\n' + "\n".join(lines))
    return path


@pytest.mark.slow
def test_runs_of_one_name_are_named_by_what_differs_in_their_configurations(tmp_path: Path) -> None:
    made = [make(tmp_path / name) for name in "abcd"]
    usual = {"epsilon": 6.0, "noise": "xnoise"}
    for path, own in zip(made, ({}, {}, {"epsilon": 2.0}, {"noise": "orig"}), strict=True):
        configured(path, **(usual | own))
    names = [facts.label for facts in read_facts(made)]
    assert names[2:] == ["epsilon 2", "noise orig"]
    assert names[0] != names[1]
    assert all(name.startswith("femnist, 20") for name in names[:2])
    assert [facts.label for facts in read_facts(made[1:3])] == ["epsilon 6", "epsilon 2"]
    found = report(*made)
    assert ["privacy.epsilon", "6", "6", "2", "6"] in found.cells
    assert not [row for row in found.cells if row[0] == "output"]


@pytest.mark.slow
def test_what_is_true_of_several_runs_is_said_once(tmp_path: Path) -> None:
    paths = [
        make(tmp_path, name=name, noise=noise) for name, noise in (("a", "xnoise"), ("b", "xnoise"), ("c", "orig"))
    ]
    text = report(*paths).text
    assert text.count("Simulated in one process, which had everybody's data") == 1
    assert "All runs: Simulated" in text
    assert text.count("The budget is overspent") == text.count("c: The budget is overspent") == 1


def test_a_budget_is_in_the_legend_once(tmp_path: Path) -> None:
    facts = read_facts([make(tmp_path, name=name) for name in "ab"])
    nearly = replace(facts[0].ledger.summary, budget=6 * (1 - 1e-12))
    marks = epsilon_chart([facts[0], replace(facts[1], ledger=LedgerCheck(nearly))]).marks
    assert [mark.name for mark in marks] == ["budget"]


def test_more_runs_than_colours_have_lines_that_differ() -> None:
    lines = tuple(Series(f"run {i}", ((1, i), (2, i))) for i in range(10))
    drawn = re.findall(r'polyline class="([^"]*)"', draw_inline(LineChart("t", "round", "", lines)))
    assert len(set(drawn)) == 10


@pytest.mark.slow
def test_a_folder_of_runs_has_an_index_that_leads_to_their_reports(tmp_path: Path) -> None:
    first, _ = make(tmp_path / "runs", name="a"), make(tmp_path / "runs", name="b", noise="orig")
    damaged = make(tmp_path / "runs", name="c")
    (damaged / run_records.MANIFEST).write_text("{")
    write_report([first])
    path = write_overview(tmp_path / "runs")
    assert path == tmp_path / "runs" / "index.html"
    found = Page(path.read_text())
    links = [attributes["href"] for tag, attributes in found.tags if tag == "a"]
    assert [tmp_path / "runs" / link for link in links] == [first / "report.html"]
    assert "3 runs in runs" in found.text
    rows = {row[0]: row for row in found.cells if row}
    assert rows["b"][3].endswith("of 6 spent, OVERSPENT")
    assert str(damaged) in rows
    assert write_overview(tmp_path / "runs", tmp_path / "elsewhere").parent == tmp_path / "elsewhere"
    with pytest.raises(InputError, match="none in it"):
        write_overview(tmp_path / "elsewhere")


def test_a_run_without_result_says_so(tmp_path: Path) -> None:
    found = report(make(tmp_path, rounds=5, stopped=None))
    assert "after 5 of 20 rounds" in found.text
    assert "The run has no result" in found.text


@pytest.mark.parametrize("stopped", [None, "interrupted"])
def test_a_run_without_rounds_has_a_report(tmp_path: Path, stopped: str | None) -> None:
    path = make(tmp_path, rounds=0, stopped=stopped)
    found = report(path)
    assert "No round was finished" in found.text
    assert not [tag for tag, _ in found.tags if tag == "svg"]
    assert report(path, make(tmp_path, name="other")).figures()[:2] == ["metric_1", "metric_2"]


@pytest.mark.slow
def test_many_rounds_are_drawn_as_means(tmp_path: Path) -> None:
    text = render_report(read_facts([make(tmp_path, rounds=200, planned=200)]))
    Page(text)
    assert "round 1–5, " in text
    assert len(text) < 600_000


def test_a_missing_run_is_one_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run at"):
        write_report([make(tmp_path), tmp_path / "nowhere"])


def test_the_report_goes_into_the_run_or_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make(tmp_path, name="a"), make(tmp_path, name="b")
    assert write_report([first]) == first / "report.html"
    assert write_report([first], tmp_path / "new" / "place") == tmp_path / "new" / "place" / "report.html"
    monkeypatch.chdir(tmp_path)
    write_report([first, second])
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert not list(tmp_path.rglob("*.new"))


def test_a_report_is_replaced_and_another_page_is_not(tmp_path: Path) -> None:
    path = make(tmp_path)
    before = write_report([path]).read_text()
    assert write_report([path]).read_text() == before
    (path / "report.html").write_text("<html>mine</html>")
    with pytest.raises(InputError, match="not a report of dordis"):
        write_report([path])
    assert (path / "report.html").read_text() == "<html>mine</html>"


def test_figures_are_files_of_their_own_with_the_numbers(tmp_path: Path) -> None:
    path = make(tmp_path)
    write_report([path], with_figures=True)
    run, files = run_records.load_run(path), {file.name for file in (path / "figures").iterdir()}
    assert files == {f"{name}.svg" for name in CHARTS} | {"rounds.csv", "metrics.csv"}
    head, *rows = [line.split(",") for line in (path / "figures" / "rounds.csv").read_text().splitlines()]
    assert [float(row[head.index("epsilon")]) for row in rows] == [record.epsilon for record in run.rounds]
    assert {row[head.index("invited")] for row in rows} == {"53"}
    assert {row[head.index("model_bytes")] for row in rows} == {str(50 * 3_980_000)}
    _, *values = (path / "figures" / "metrics.csv").read_text().splitlines()
    assert len(values) == 2 * len(run.rounds)


def test_a_ledger_is_recomputed_for_the_report(tmp_path: Path) -> None:
    path = make(tmp_path, rounds=2, stopped=None)
    (facts,) = read_facts([path])
    assert facts.ledger.summary is not None
    found = report(path)
    assert f"head {facts.ledger.summary.head}" in found.text
    assert f"run {facts.run_id}" in found.text
    assert f"6 epsilon stated; spent so far {format_number(facts.ledger.summary.epsilon)} of 6" in found.text


def test_the_legend_of_the_traffic_says_in_which_direction_every_number_is(tmp_path: Path) -> None:
    (facts,) = read_facts([make(tmp_path)])
    chart = traffic_chart([facts])
    names = ["sent, in all", "received, in all", "received: the model", "received: sums of missed rounds"]
    assert [series.name for series in chart.series] == names
    assert chart.note.startswith("of the bytes sent, one masked update has ")
