"""Write docs/reference from the code: `python -m tools.reference_pages`, or `make pages`.

The configuration comes from the structs that read it, the command line from typer, the errors from their classes, and
the Python API from the exported names.  tests/test_docs.py compares the pages with what this module returns.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import typer.main
from msgspec import inspect as kinds

import dordis
from dordis import errors
from dordis.apps.learning.settings import Settings
from dordis.cli import SECTIONS, app
from dordis.cli.output import EXIT_CODES
from dordis.config.schema import Config

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- written by `make pages` from the code: do not edit -->\n"
Struct = type[msgspec.Struct]


def read_meanings(struct: Struct) -> dict[str, str]:
    """Return the docstrings below the fields of a struct and its bases, by field."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base in (object, msgspec.Struct) or not issubclass(base, msgspec.Struct):
            continue
        (body,) = (node.body for node in ast.parse(inspect.getsource(base)).body if isinstance(node, ast.ClassDef))
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return found


def describe_type(kind: kinds.Type) -> str:
    """Describe a type in the words of a configuration: "whole number from 1", "one of `a`, `b`"."""
    match kind:
        case kinds.BoolType():
            return "`true` or `false`"
        case kinds.IntType():
            return "whole number" + describe_limits(kind)
        case kinds.FloatType():
            return "number" + describe_limits(kind)
        case kinds.StrType():
            return "text"
        case kinds.LiteralType(values=values):
            return " or ".join(f'`"{value}"`' for value in values)
        case kinds.VarTupleType(item_type=item) | kinds.ListType(item_type=item):
            return f"list of {describe_type(item)}"
        case kinds.TupleType(item_types=items):
            return f"list of {len(items)}: {', '.join(map(describe_type, items))}"
        case kinds.DictType(value_type=value):
            return "table" if isinstance(value, kinds.AnyType) else f"table of {describe_type(value)}"
        case kinds.StructType(cls=struct, tag=tag):
            return f"table of kind `{tag}`" if tag is not None else f"table `{struct.__name__}`"
        case kinds.UnionType(types=types):
            tags = [f"`{one.tag}`" for one in types if isinstance(one, kinds.StructType) and one.tag is not None]
            told = [one for one in types if not isinstance(one, kinds.NoneType)]
            if len(tags) == len(told):
                return f"table of kind {', '.join(tags)}"
            return " or ".join(dict.fromkeys(map(describe_type, told)))
    return "anything"


def describe_limits(kind: kinds.IntType | kinds.FloatType) -> str:
    """Describe the limits of a number: " from 1", " above 0", " from 1 to 32"."""
    low = f" from {kind.ge}" if kind.ge is not None else f" above {kind.gt}" if kind.gt is not None else ""
    high = f" to {kind.le}" if kind.le is not None else f" below {kind.lt}" if kind.lt is not None else ""
    return f"{low},{high}" if low and high and kind.ge is None else low + high


def describe_default(field: kinds.Field) -> str:
    """Return the default of a field as TOML writes it."""
    if field.required:
        return "required"
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None or value is msgspec.UNSET or value is msgspec.NODEFAULT:
        return "not set"
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        shown = {name: one for name, one in msgspec.to_builtins(value).items() if one not in (None, (), [], {}, tag)}
        return f"`{{ {', '.join(f'{name} = {write_value(one)}' for name, one in {'kind': tag, **shown}.items())} }}`"
    return f"`{write_value(value)}`"


def write_value(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}" if not value else str(value)
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def write_section(path: str, struct: Struct, heading: str = "##") -> Iterator[str]:
    """Yield the lines of a section: its purpose, its keys as a table, and the kinds of structs that keys take."""
    info = kinds.type_info(struct)
    assert isinstance(info, kinds.StructType)  # noqa: S101  a struct has this type
    meanings, text = read_meanings(struct), read_docstring(struct)
    meanings = {field.name: meanings[field.name] for field in info.fields if field.name in meanings}
    yield f'{heading} {path}, `kind = "{info.tag}"`' if info.tag else f"{heading} {path}"
    yield f"\n{text}\n"
    plain = [field for field in info.fields if not is_section(field)]
    if plain and meanings:
        yield "| Key | Type | Default | Meaning |\n|---|---|---|---|"
    elif plain:
        yield "| Key | Type | Default |\n|---|---|---|"
    for field in plain:
        cells = [f"`{field.name}`", describe_type(field.type), describe_default(field)]
        yield f"| {' | '.join([*cells, join_lines(meanings.get(field.name, ''))] if meanings else cells)} |"
    yield ""
    for field in info.fields:
        for inner in list_structs(field.type):
            yield from write_section(f"{path}.{field.name}".removeprefix("top level."), inner, "##")


def read_docstring(struct: Struct) -> str:
    """Return the docstring of a struct, without its examples."""
    return inspect.cleandoc(struct.__doc__ or "").split("\n\n>>>")[0]


def is_section(field: kinds.Field) -> bool:
    """Tell whether a field is a section of its own: a struct without a tag, and nothing else."""
    return isinstance(field.type, kinds.StructType) and field.type.tag is None


def list_structs(kind: kinds.Type) -> list[Struct]:
    """Return the structs that a value of a type can be."""
    types = kind.types if isinstance(kind, kinds.UnionType) else (kind,)
    return [one.cls for one in types if isinstance(one, kinds.StructType)]


def join_lines(text: str) -> str:
    """Return a text on one line, for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def write_configuration() -> str:
    """Return the page of all settings."""
    head = """# Configuration

A run is described by one TOML file. Each section below is a section of that file. `dordis init` writes a file with all
common settings and comments; `-c section.key=value` changes one setting on the command line. A key that is not on this
page is refused, and the error names the most similar key.
"""
    sections = "\n".join(write_section("top level", Config))
    options = "\n".join(write_section("app.options", Settings))
    between = (
        "The options of federated learning follow, the application that runs unless `app.server` and `app.client` name "
        "another one. [Data](../data.md) explains them with examples.\n"
    )
    return f"{NOTE}\n{head}\n{sections}\n{between}\n{options}".rstrip() + "\n"


def write_command_line() -> str:
    """Return the page of all commands, by task."""
    parts = [
        NOTE,
        "# Command line\n",
        "All commands with their arguments and options, by task, as `dordis COMMAND --help` prints them.\n",
        "| Exit code | Meaning |\n|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
    ]
    root: Any = typer.main.get_command(app)
    for task, names in SECTIONS.items():
        parts.append(f"## {task}\n")
        for name in names:
            parts += write_command(root.commands[name], f"dordis {name}")
    return "\n".join(parts).rstrip() + "\n"


def write_command(command: Any, name: str) -> Iterator[str]:
    """Yield the lines of a command, or of the commands of a group."""
    yield f"### {name}\n"
    yield format_help(command.help or "") + "\n"
    for inner, below in getattr(command, "commands", {}).items():
        yield from write_command(below, f"{name} {inner}")
    given = [one for one in getattr(command, "params", []) if not one.is_eager and not getattr(one, "hidden", False)]
    if given and not hasattr(command, "commands"):
        yield "| Argument or option | Default | Meaning |\n|---|---|---|"
        yield from map(write_parameter, given)
        yield ""


def format_help(text: str) -> str:
    """Return the help of a command as Markdown: without click's marks, examples as code."""
    paragraphs = inspect.cleandoc(text).replace("\\[", "[").split("\n\n")
    shown = []
    for paragraph in paragraphs:
        literal = paragraph.removeprefix("\b\n")
        shown.append(f"```text\n{literal}\n```" if literal != paragraph else paragraph)
    return "\n\n".join(shown)


def write_parameter(parameter: Any) -> str:
    """Return an argument or option as a row of a table."""
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        words = " ".join(filter(None, (", ".join([*parameter.opts, *parameter.secondary_opts]), name_value(parameter))))
        name = f"`{words}`"
    default = parameter.default
    empty = default is None or default is False or default == () or default == [] or callable(default)
    shown = "required" if parameter.required else "" if empty else f"`{default}`"
    return f"| {name} | {shown} | {join_lines((parameter.help or '').replace(chr(92) + '[', '['))} |"


def name_value(option: Any) -> str:
    """Return the value that an option takes in capitals; nothing for a switch."""
    if option.is_flag:
        return ""
    choices = getattr(option.type, "choices", None)
    return str(option.metavar or ("|".join(map(str, choices)) if choices else option.type.name.upper()))


def write_errors() -> str:
    """Return the page of errors and exit codes."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("::\n\n")[1].split("\n\n`InputError`")[0]
    kinds_of_error = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    rows = [f"| `{kind.__name__}` | `{kind.__mro__[1].__name__}` | {read_summary(kind)} |" for kind in kinds_of_error]
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    parts = [
        NOTE,
        "# Errors and exit codes\n",
        "A command that refuses prints one line on standard error and ends with one of these codes. A traceback is a "
        "bug: please report it.\n",
        "| Exit code | Meaning |\n|---|---|",
        *codes,
        "\nIn Python all errors are in `dordis.errors`, as one tree. `dordis.DordisError` is its root; `InputError` is "
        "also a `ValueError`. No message contains a key, a seed, a share or a plaintext.\n",
        f"```text\n{inspect.cleandoc(tree)}\n```\n",
        "| Error | Is a | When |\n|---|---|---|",
        *rows,
    ]
    return "\n".join(parts) + "\n"


def read_summary(item: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return join_lines(inspect.cleandoc(item.__doc__ or "").split("\n\n")[0])


GROUPS = {
    "Run and train": ("train", "run", "load", "RunResult", "Config"),
    "Private statistics": ("mean", "histogram", "find_ranges"),
    "Tables": ("Table",),
    "Applications of your own": ("AppServer", "AppClient", "RoundInfo", "Aggregate"),
    "Noise": ("noise",),
    "Errors": (
        "DordisError", "InputError", "HopelessPlan", "NothingTrained", "BudgetExceeded", "ProtocolError", "RoundFailed",
    ),
}  # fmt: skip
"""Exported names by purpose."""


def write_python() -> str:
    """Return the page of the Python API: a table of the exported names, and mkdocstrings' marks for the site."""
    homes: dict[str, str] = vars(dordis)["_HOME"]
    parts = [
        NOTE,
        "# Python API\n",
        "`import dordis` exports the names below; they keep their meaning within a version. Everything else is "
        "internal and may change. `help(dordis.train)` prints a whole docstring; the documentation site shows it below "
        "each table.\n",
    ]
    for group, names in GROUPS.items():
        parts += [f"## {group}\n", "| Name | Purpose |\n|---|---|"]
        for name in names:
            parts.append(f"| `dordis.{name}` | {read_summary(getattr(dordis, name))} |")
        parts += ["", *(f"::: {homes[name]}.{name}\n" for name in names)]
    return "\n".join(parts).rstrip() + "\n"


def write_pages() -> dict[str, str]:
    """Return all generated pages by the names of their files."""
    pages = {
        "configuration.md": write_configuration(),
        "command_line.md": write_command_line(),
        "errors.md": write_errors(),
        "python.md": write_python(),
    }
    return {name: re.sub(r"\n{3,}", "\n\n", page) for name, page in pages.items()}


if __name__ == "__main__":
    for file, page in write_pages().items():
        (FOLDER / file).write_text(page, encoding="utf-8")
