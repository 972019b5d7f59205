"""Draw docstrings and sentences of the pages for a reading test: `python -m tools.draw_sentences COUNT SEED`."""

import ast
import random
import re
import sys
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
    count, seed = int(sys.argv[1]), sys.argv[2]
    for texts in (list_docstrings(), list_sentences()):
        print(*random.Random(seed).sample(texts, count), "", sep="\n")  # noqa: S311  a draw, not a secret
