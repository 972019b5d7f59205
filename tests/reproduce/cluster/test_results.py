"""Results of a cluster: summaries with predictions, the file, tables and chart, and the page that says how."""

import re
import shlex
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dordis.config import reading
from dordis.errors import InputError
from reproduce.cluster.results import (
    RESULTS,
    ClusterResults,
    add_setting,
    aggregation_share,
    compare_figure_10,
    find_headline,
    read_results,
    summarise_rounds,
    write_results,
)
from tests.reproduce.cluster.rounds import make_record

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


def make_setting(**changes):
    rounds = [make_record(m) for m in (1, 2, 4, 8)]
    return msgspec.structs.replace(summarise_rounds(rounds, [make_record(4)], (), None, 2), **changes)


def printed(experiment):
    console = Console(file=StringIO(), width=200)
    for table in experiment.tables:
        console.print(table)
    return console.file.getvalue()


def test_a_summary_has_the_speed_up_over_plain_rounds():
    setting = make_setting()
    assert [row.chunks for row in setting.rows] == [1, 2, 4, 8]
    assert setting.speedup == pytest.approx(setting.plain.best / min(row.best for row in setting.rows))
    assert setting.speedup > 1.4
    assert (setting.auto, setting.title) == ((4,), "n = 4, d = 1M")
    for row in setting.rows[1:3]:
        assert row.from_rounds == pytest.approx(row.best, rel=0.01)  # these rounds follow the model


def test_rounds_whose_clients_dropped_out_say_so():
    assert summarise_rounds([make_record(1, lost=1)], [], (), None, 2).title.endswith("1 lost")
    with pytest.raises(InputError, match="no rounds"):
        summarise_rounds([], [], (), None, 2)


def test_results_are_read_as_they_were_written_and_a_setting_replaces_its_older_self(tmp_path):
    path = tmp_path / "folder" / "cluster.json"
    results = add_setting(ClusterResults(training=2.0), make_setting())
    write_results(results, path)
    assert read_results(path) == results
    newer = add_setting(results, make_setting(load=3.0))
    assert [setting.load for setting in newer.settings] == [3.0]
    assert len(add_setting(newer, make_setting(clients=9)).settings) == 2
    only = summarise_rounds([make_record(16)], [], (), None, 2)
    (merged,) = add_setting(newer, only).settings
    assert ([row.chunks for row in merged.rows], merged.auto) == ([1, 2, 4, 8, 16], (4,))
    path.write_text("{")
    with pytest.raises(InputError, match="holds no results"):
        read_results(path)


def test_the_tables_have_measured_and_predicted_seconds_and_the_share_of_aggregation():
    setting = make_setting()
    results = ClusterResults((setting,), training=setting.plain.best)
    text = printed(compare_figure_10(results))
    assert f"{setting.plain.best:.1f}" in text
    assert f"{setting.speedup:.2f}" in text
    assert "auto, chunks and seconds round by round: 4:" in text
    assert aggregation_share(setting.plain, results) == 0.5
    assert "50%" in text
    ((name, chart),) = compare_figure_10(results).charts
    assert (name, chart.categories) == ("cluster", ("n=4 m=1", f"n=4 m={setting.fastest.chunks}"))


def test_the_headline_is_the_largest_speed_up_and_the_range_of_errors():
    setting = make_setting()
    slow = make_setting(clients=9, rows=setting.rows[:1])
    found = find_headline(ClusterResults((slow, setting)))
    assert (found.speedup, found.setting, found.chunks) == (setting.speedup, setting.title, setting.fastest.chunks)
    assert found.from_costs is None
    assert found.from_rounds is not None
    assert found.from_rounds[0] <= found.from_rounds[1]
    with pytest.raises(InputError, match="no setting has plain rounds"):
        find_headline(ClusterResults())


def test_the_committed_results_have_the_settings_of_the_issue():
    results = read_results(RESULTS)
    found = {(setting.clients, setting.dim) for setting in results.settings}
    assert {(16, 1_000_000), (100, 1_000_000)} <= found
    assert all(setting.plain is not None and setting.command for setting in results.settings)


def test_the_page_of_results_has_every_setting_with_its_command_and_seconds():
    page = (RESULTS.parent / "README.md").read_text()
    for setting in read_results(RESULTS).settings:
        assert f"## {setting.title}\n\n```\n{setting.command}\n```" in page
        for row in setting.rows:
            assert (
                f"| {row.chunks} | {', '.join(f'{seconds:.1f}' for seconds in row.seconds)} | {row.best:.1f} |" in page
            )


def test_the_commands_and_the_configuration_of_cluster_md_are_understood():
    from typer.testing import CliRunner

    from reproduce.commands import app

    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (config,) = (block for language, block in blocks if language == "toml")
    given = reading.config_from_settings(reading.tomllib.loads(config))
    assert given.app.server == "reproduce.cluster.app:FixedServer"
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("python -m reproduce cluster")]
    assert len(commands) >= 3
    options = set(re.findall(r"--[a-z-]+", CliRunner().invoke(app, ["cluster", "--help"]).output))
    used = {word for command in commands for word in shlex.split(command, comments=True) if word.startswith("--")}
    assert used <= options
