"""Draw docstrings and sentences of the pages for a reading test: `python -m tools.draw_sentences COUNT SEED`."""

import argparse
import ast
import random
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def list_docstrings() -> list[str]:
    """Return the docstrings of the package, each with its place."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text, name = ast.get_docstring(node), getattr(node, "name", "module")
                found += [f"{path.relative_to(ROOT)}: {name}: {' '.join(text.split())}"] if text else []
    return found


def list_sentences() -> list[str]:
    """Return the sentences of README and docs, without code, tables and headings, each with its page."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for block in re.split(r"\n\s*\n|\n(?=\s*[-*\d] )", text):
            if not block.startswith(("|", "#", "    ", "<!--", "!")):
                sentences = re.split(r"(?<=[.:?!]) (?=[A-Z`*\[])", " ".join(block.split()))
                found += [f"{page.relative_to(ROOT)}: {one}" for one in sentences if len(one.split()) > 4]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.draw_sentences", description=__doc__)
    parser.add_argument("count", type=int, help="docstrings to draw, and as many sentences")
    parser.add_argument("seed", help="any text; the same seed draws the same places of the same tree")
    options = parser.parse_args()
    for texts in (list_docstrings(), list_sentences()):
        print(*random.Random(options.seed).sample(texts, options.count), "", sep="\n")  # noqa: S311  a draw, not a secret
