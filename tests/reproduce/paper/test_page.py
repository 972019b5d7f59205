"""The page: sections without results say so, and what is shown has its verdicts."""

from reproduce.paper.jobs import Finished
from reproduce.paper.page import show_section, write_html, write_markdown
from reproduce.paper.privacy import BUDGET, RATES
from reproduce.paper.table import SECTIONS

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


def test_the_html_page_has_the_charts() -> None:
    page = write_html(ALL, "small", {})
    assert page.count("<svg") >= 3
    assert "<b>not run</b>" in page
