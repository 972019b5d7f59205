"""Print files, lines and lines of code by package, and functions over 40 lines: `python -m tools.package_sizes`.

A function is listed with the lines of its body, without signature and docstring: commands and public functions are long
because they name and explain every option.
"""

import ast
import signal
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "dordis"
LONGEST_FUNCTION = 40
REASONS = {
    "apps/tables/description.py: write_template": "writes a file line by line",
    "cli/commands/audit.py: audit": "a command: hands over its options, and says what was found",
    "cli/commands/plan.py: plan_noise": "a command: hands over its options",
    "cli/commands/run.py: run": "a command: hands over its options, and starts or resumes a run",
    "cli/commands/run.py: run_rounds": "the rounds of a run in order, and everything that can end them",
    "cli/commands/serve.py: serve_run": "a server from start to end, each part to be closed in reverse order",
    "cli/plan_noise.py: _plan_fields": "one line for each field of the output",
    "library.py: train": "one line for each setting of the configuration",
    "runs/coordinator.py: _use_sum": "one line for each field of the record of a round",
}
"""Functions with a body of more than `LONGEST_FUNCTION` lines, and why they are not divided."""
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def count_code(path: Path) -> int:
    """Return the number of lines of a file with code: neither empty, nor comment, nor docstring."""
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in NOT_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    texts = [node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Expr)]
    strings = [text for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]
    return len(lines - {line for text in strings for line in range(text.lineno, (text.end_lineno or 0) + 1)})


def list_long_functions(path: Path) -> list[tuple[str, int, int]]:
    """Return name, length, and length of the body of the functions of a file that are too long."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    ends = [(node, node.end_lineno or 0) for node in functions]
    lengths = [(node.name, end - node.lineno + 1, end - find_body(node) + 1) for node, end in ends]
    return [(name, length, body) for name, length, body in lengths if length > LONGEST_FUNCTION]


def find_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the first line after signature and docstring."""
    has_docstring = ast.get_docstring(function) is not None and len(function.body) > 1
    return function.body[1 if has_docstring else 0].lineno


def main(source: Path) -> None:
    """Print the table of a source tree, and its long functions and files."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    paths = sorted(source.rglob("*.py"))
    for path in paths:
        parts = path.relative_to(source).parts
        for row in (parts[0] if len(parts) > 1 else "(top)", "total"):
            counts = (1, len(path.read_text("utf-8").splitlines()), count_code(path))
            table[row] = [a + b for a, b in zip(table[row], counts, strict=True)]
    print(f"{'package':<16}{'files':>7}{'lines':>8}{'code':>8}")
    for row in sorted(table, key=lambda row: (row == "total", row)):
        print(f"{row:<16}" + "".join(f"{count:>{width}}" for count, width in zip(table[row], (7, 8, 8), strict=True)))
    for path in paths:
        for name, length, body in list_long_functions(path):
            place = f"{path.relative_to(source)}: {name}"
            reason = REASONS.get(place, "signature and docstring" if body <= LONGEST_FUNCTION else "NO REASON")
            print(f"{length} lines, body {body}: {place} ({reason})")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end without a traceback if the reader is gone, as in `| head -3`
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
