"""The page: sections without results say so, and what is shown has its verdicts."""

import pytest

from reproduce.cluster.namespaces import CANNOT_OPEN
from reproduce.paper import Job
from reproduce.paper.figures_1d_8_epsilon import BUDGET, RATES
from reproduce.paper.jobs import Finished
from reproduce.paper.page import show_section, write_html, write_markdown
from reproduce.paper.sections import SECTIONS

ALL = list(SECTIONS.values())


def finished_epsilons(orig_at_40: float) -> dict[str, Finished]:
    """Return made-up results of figure 8: Orig overspends as rates grow, XNoise does not."""
    found = {}
    for job in SECTIONS["figure 8"].jobs("small"):
        _, _, noise, rate, *_ = job.label.split()
        grown = {"orig": BUDGET + float(rate) / 0.4 * (orig_at_40 - BUDGET), "con-8": 2.0}
        grown["con-2"] = BUDGET - 0.5 + 2 * float(rate)
        rounds = 150 if noise != "early" or rate == "0" else 120
        result = {"epsilon": [grown.get(noise, BUDGET)], "rounds": rounds, "planned": 150}
        found[job.label] = Finished(result, "", 1.0)
    return found


def test_nothing_that_was_not_run_is_printed() -> None:
    page = write_markdown(ALL, "small", {})
    assert page.count("**not run**") == sum(bool(section.jobs("small")) for section in ALL)
    assert "1/4, 1/12, 1/6 | 1/4, 1/12, 1/6 | holds" in page
    for section in ALL:
        assert f"## {section.number.capitalize()}: {section.title}\n\n{section.what}" in page
        assert section.command in page


def test_a_job_that_failed_leaves_its_section_without_results() -> None:
    found = finished_epsilons(8.3)
    assert show_section(SECTIONS["figure 8"], "small", found) is not None
    found[next(iter(found))] = Finished(None, "no data", 0.0)
    assert show_section(SECTIONS["figure 8"], "small", found) is None


def test_a_number_that_misses_is_a_no_with_its_reason() -> None:
    content = show_section(SECTIONS["figure 8"], "small", finished_epsilons(8.3))
    assert content is not None
    femnist, cifar, reddit, xnoise, *others = content.verdicts
    assert (femnist.holds, cifar.holds, reddit.holds, xnoise.holds) == (True, False, False, True)
    assert reddit.verdict.startswith("NO: differs, because")
    assert [verdict.holds for verdict in others] == [True, True, True]
    assert len(content.grids[0].rows[0]) == 2 + len(RATES)


def made_up(job: Job) -> object:
    """Return a made-up result of a job's form."""
    if job.kind == "traffic":
        cases = ("", "_up", "_worst", "_worst_up")
        ours = {f"{scheme}{case}": 0.6 for scheme in ("single", "exact") for case in cases}
        rates = ("0", "1/10", "1/5", "3/10")
        return [{"rate": rate, "clients": job.arguments["clients"], "formula": 0.6, "ours": ours} for rate in rates]
    if job.kind in ("round-times", "shares"):
        width = 5 if job.kind == "round-times" else 4
        return {"claims": [["gain", "2", "1", "NO: differs, because of links"]], "rows": [["x"] * width]}
    if job.kind == "client-training":
        return 1.5
    if job.kind == "cluster":
        rows = [{"chunks": m, "seconds": [2.0 / m], "stages": {}, "from_costs": 1.0} for m in job.arguments["chunks"]]
        links = {"mbps": [21.0, 210.0], "latency": 0.05, "slowness": 1.0, "command": "python -m reproduce cluster"}
        return {"clients": job.arguments["clients"], "dim": job.arguments["dim"], "dropped": 0, "rows": rows} | links
    values = {"metric": [0.5, 0.7], "epsilon": [3.0, 6.0], "dropped": [0.0, 0.5], "invited": [16, 16]}
    return values | {"rounds": 2, "planned": 2, "stopped": "rounds"}


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("number", SECTIONS)
def test_every_section_shows_its_results_at_both_scales(number: str, scale: str) -> None:
    section = SECTIONS[number]
    finished = {job.label: Finished(made_up(job), "", 1.0) for job in section.jobs(scale)}
    content = show_section(section, scale, finished)
    assert content is not None
    assert all(verdict.statement and verdict.verdict for verdict in content.verdicts)
    assert all(len(row) == len(grid.heads) for grid in content.grids for row in grid.rows)
    assert "**not run**" not in write_markdown([section], scale, finished)


@pytest.mark.parametrize("number", ["figure 2", "figure 10"])
def test_without_measured_rounds_a_section_says_that_they_cannot_be_run_here(number: str) -> None:
    section, refusal = SECTIONS[number], f"{CANNOT_OPEN}network namespaces need root"
    finished = {
        job.label: Finished(None, refusal, 0.0) if job.alone else Finished(made_up(job), "", 1.0)
        for job in section.jobs("small")
    }
    page = write_markdown([section], "small", finished)
    assert "| not run | cannot be run here: network namespaces need root |" in page
    assert "No rounds were measured in this run" in page


def test_a_section_that_failed_says_how() -> None:
    found = finished_epsilons(8.3)
    found[next(iter(found))] = Finished(None, "ZeroDivisionError: nothing to divide by", 0.0)
    page = write_markdown([SECTIONS["figure 8"]], "small", found, "It took 3 minutes.")
    assert "1 failed: epsilon FEMNIST orig 0 budget 6: ZeroDivisionError: nothing to divide by" in page
    assert "It took 3 minutes." in page


def test_the_html_page_has_the_charts() -> None:
    page = write_html(ALL, "small", {})
    assert page.count("<svg") >= 3
    assert "<b>not run</b>: 1 of 1 jobs have no result" in page
