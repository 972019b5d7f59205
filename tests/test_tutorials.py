"""The pages of docs/start, docs/tutorials and docs/howto: every command and every line of Python runs."""

import importlib.util

import pytest

from tests.page_runner import NOT_RUN, ROOT, PageRun, list_pages, read_blocks

QUICK = {"docs/start/install.md", "docs/tutorials/notebooks.md", "docs/tutorials/flower.md"}
TORCH = {"docs/tutorials/pytorch.md"}


def mark_page(page: str) -> object:
    """Return a page as a parameter, with the marks of what it needs."""
    marks = [] if page in QUICK else [pytest.mark.slow]
    if page in TORCH:
        absent = importlib.util.find_spec("torch") is None
        marks += [pytest.mark.torch, pytest.mark.skipif(absent, reason="needs the extra torch")]
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize("page", [mark_page(page) for page in list_pages()])
def test_every_block_of_the_page_runs_in_its_order(page, tmp_path):
    run = PageRun(tmp_path)
    for block in read_blocks(page):
        run.run(block)


def test_there_is_a_tutorial_for_each_path_and_few_blocks_are_not_run():
    blocks = [block for page in list_pages() for block in read_blocks(page)]
    assert len(list_pages()) == 14
    assert len(blocks) >= 40
    assert sum(block.language == "console" for block in blocks) == 7


def test_every_exception_is_a_line_of_some_page():
    lines = [
        line
        for page in list_pages()
        for block in read_blocks(page)
        if block.language == "console"
        for line in block.text.splitlines()
    ]
    assert [listed for listed in NOT_RUN if not any(line.startswith(listed) for line in lines)] == []


def test_the_torch_tutorial_is_one_file_of_at_most_forty_lines():
    (script,) = (block for block in read_blocks("docs/tutorials/pytorch.md") if block.title)
    assert len(script.text.splitlines()) <= 40
    assert f"file of {len(script.text.splitlines())} lines" in (ROOT / "docs/tutorials/pytorch.md").read_text()
