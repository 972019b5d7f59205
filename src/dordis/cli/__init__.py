"""The command line: it finds the commands, runs one of them, and turns an error into one line and an exit code.

A module in `commands` defines one command (the function with the module's name), several commands (the list
`TOP_LEVEL`), or a group of commands with the module's name, such as `dordis keys` (the table `COMMANDS`).  The help of
a group is `HELP` of the module, or else the module's docstring.  A group that is called without a command runs its
command `DEFAULT`.  `--help` imports all modules, so packages that take long to import are imported inside functions.

The exit codes are in `dordis.cli.output`.  An unexpected exception is a bug and keeps its traceback.
"""

import io
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from dordis import __version__
from dordis.cli import commands
from dordis.cli.output import EXIT_CODES, INTERRUPTED, OVER_BUDGET, REFUSED
from dordis.errors import DISK_FULL, BudgetExceeded, DordisError

Sections = Mapping[str, tuple[str, ...]]

SECTIONS: Sections = {
    "Get to know dordis": ("demo", "doctor"),
    "Prepare a run": ("init", "data", "bounds", "plan", "rehearse", "profile"),
    "Compute privately": ("run", "mean", "histogram"),
    "Read results": ("report", "ledger", "verify", "explain", "export", "audit"),
    "Deploy on several machines": ("keys", "serve", "join", "assist", "status"),
}
"""Commands by task, as `dordis --help` lists them."""

MOVED = {
    "attack": "The attacks are in the repository, not in the package: clone it and run `make attack`.",
    "reproduce": "The paper's experiments are in the repository, not in the package: clone it and run "
    "`python -m reproduce`.",
}
"""Former commands, each with the line that is now printed in its place."""


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return _unescape(super().get_help(ctx))


class _Group(TyperGroup):
    """A group of commands whose help lists them by section; if no command is named, the command `default` runs."""

    default: ClassVar[str] = ""
    sections: ClassVar[Sections] = {}

    def get_help(self, ctx: Any) -> str:
        return _unescape(super().get_help(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.default and (not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        listed = [name for name, command in self.commands.items() if not command.hidden]
        sections = {title: [name for name in names if name in listed] for title, names in self.sections.items()}
        named = {name for names in sections.values() for name in names}
        sections["Other commands" if named else "Commands"] = [name for name in listed if name not in named]
        width = max(map(len, listed), default=0)
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    room = formatter.width - 6 - width
                    formatter.write_dl(
                        [(name.ljust(width), self.commands[name].get_short_help_str(room)) for name in names]
                    )


def _unescape(text: str) -> str:
    """Remove the backslashes before brackets; typer writes them for rich, even where rich is not used."""
    return text.replace("\\[", "[")


def build_group(package: ModuleType, sections: Sections | None = None) -> typer.Typer:
    """Return a typer group of a package's commands; each module has one command, several, or a group of commands.

    `sections` says in which sections the help lists the commands; commands in no section are listed last.
    """
    group = _new_group(package.__doc__, sections=sections or {})
    for found in iter_modules(package.__path__):
        module = import_module(f"{package.__name__}.{found.name}")
        own_name = () if hasattr(module, "COMMANDS") else (found.name,)
        for command in getattr(module, "TOP_LEVEL", None) or [getattr(module, name) for name in own_name]:
            group.command(cls=_Command)(command)
        if own_name:
            continue
        below = _new_group(getattr(module, "HELP", module.__doc__), default=getattr(module, "DEFAULT", ""))
        for name, command in module.COMMANDS.items():
            below.command(name, cls=_Command)(command)
        group.add_typer(below, name=found.name)
    return group


def _new_group(help_text: str | None, **attributes: Any) -> typer.Typer:
    # Plain tracebacks: pretty ones may print local variables, which may be secrets.
    return typer.Typer(
        name="dordis",
        cls=type("_ConfiguredGroup", (_Group,), attributes),
        help=help_text,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add_moved(group: typer.Typer, name: str, line: str) -> None:
    """Add a former command to a group: it is hidden in the help, accepts any arguments, and prints `line`."""

    def print_line() -> None:
        typer.echo(line)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    group.command(name, hidden=True, context_settings=anything)(print_line)


app = build_group(commands, SECTIONS)
for _name, _line in MOVED.items():
    _add_moved(app, _name, _line)

# The base class of typer's usage errors: a class of click in older versions of typer, of typer in newer versions.
USAGE: Any = next(kind for kind in reversed(typer.BadParameter.__mro__) if hasattr(kind, "format_message"))


def main() -> None:
    """Run the program `dordis` with the arguments of the process, and exit."""
    run_app(app, "dordis")


def run_app(commands: typer.Typer, name: str) -> None:
    """Run the program `name`, which consists of a group of commands; print an error as one line, and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for other characters
    try:
        code = _call(commands, name)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has what it wants, as in `dordis plan noise ... | head -1`
        _abandon_output()
        code = INTERRUPTED
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _abandon_output()
        where = f" at {error.filename}" if error.filename else ""
        code = _refuse("; ".join((f"cannot write{where}: {error.strerror}", *getattr(error, "__notes__", ()))))
    sys.exit(code)


def _call(commands: typer.Typer, name: str) -> int | str | None:
    """Run the command that the process arguments name, and return its exit code; raise only OSError and bugs."""
    try:
        code: int | None = commands(prog_name=name, standalone_mode=False)
        return code
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer exits with 1, which means FOUND
            raise end.__context__ from None
        return end.code
    except USAGE as error:
        reason = error.format_message()
        return _refuse("Missing command: --help lists them." if reason == "Missing command." else reason)
    except typer.Abort:
        return INTERRUPTED
    except BudgetExceeded as error:
        return _refuse(str(error), OVER_BUDGET)
    except DordisError as error:
        return _refuse("; ".join((str(error), *getattr(error, "__notes__", ()))))
    except MemoryError as error:
        return _refuse(f"there is not enough memory: {str(error) or 'take fewer clients, bins or coordinates'}")


def _abandon_output() -> None:
    """Discard output that cannot be written: Python would try to write it again at exit, and print a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with open(os.devnull, "wb") as nothing:  # noqa: PTH123
                os.dup2(nothing.fileno(), stream.fileno())


def _refuse(reason: str, code: int = REFUSED) -> int:
    """Print `reason` on one line; TOML at its end is printed unchanged, on further lines.  Return `code`."""
    said, section, paste = reason.partition("\n[")
    typer.echo("dordis: " + " ".join(said.split()), err=True)
    if section:
        typer.echo(f"[{paste}", err=True)
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dordis {__version__}")
        raise typer.Exit


_EXIT_CODES = "Exit codes:\n\n\b\n" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES.items())


@app.callback(help=commands.__doc__, epilog=_EXIT_CODES)
def _dordis(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...
