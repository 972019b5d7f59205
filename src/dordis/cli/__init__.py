"""The command line: find the commands, run one of them, and turn a refusal into one line and an exit code.

A command is a file in `commands`: the function of the same name, with its options, its help and its work.  A folder is
a group of commands.  `--help` imports all of these files, so that what is heavy is imported where a command needs it.

What the exit codes mean is in `exits`.  Anything else is a bug and keeps its traceback.
"""

import errno
import io
import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any

import typer

from dordis import __version__
from dordis.cli import commands, exits
from dordis.errors import BudgetExceeded, DordisError

FIRST = ("run", "report", "mean", "histogram", "init", "doctor", "demo", "profile", "plan", "attack", "audit")
"""Commands that `--help` lists first, most used ones before others; the rest follow by name."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says if a file cannot take any more: no bug, and nothing that dordis can mend."""

MISSING = "Missing command."
"""What typer says if there is no command, without a word on which ones there are."""


def group_of(package: ModuleType) -> typer.Typer:
    """Return the commands in a package, and the groups in it."""
    # Plain tracebacks, because pretty ones may print local variables, and those may be secrets.
    group = typer.Typer(
        name="dordis",
        help=package.__doc__,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    names = {module.name: module.ispkg for module in iter_modules(package.__path__)}
    for name in sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)):
        module = import_module(f"{package.__name__}.{name}")
        if names[name]:
            group.add_typer(group_of(module), name=name)
        else:
            group.command()(getattr(module, name))
    return group


app = group_of(commands)

# The root of what typer raises about wrong usage: a class of click in its older versions, of its own in newer ones.
USAGE: Any = next(kind for kind in reversed(typer.BadParameter.__mro__) if hasattr(kind, "format_message"))


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII alone shows ? for the rest
    try:
        sys.exit(app(prog_name="dordis", standalone_mode=False))
    except USAGE as error:
        reason = error.format_message()
        _refuse("Missing command: --help lists them." if reason == MISSING else reason)
    except typer.Abort:
        sys.exit(exits.INTERRUPTED)
    except BudgetExceeded as error:
        _refuse(str(error), exits.OVER_BUDGET)
    except DordisError as error:
        _refuse("; ".join((str(error), *getattr(error, "__notes__", ()))))
    except MemoryError as error:
        _refuse(f"there is not enough memory: {str(error) or 'take fewer clients, bins or coordinates'}")
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = f" at {error.filename}" if error.filename else ""
        _refuse("; ".join((f"cannot write{where}: {error.strerror}", *getattr(error, "__notes__", ()))))


def _refuse(reason: str, code: int = exits.REFUSED) -> None:
    typer.echo("dordis: " + " ".join(reason.split()), err=True)
    sys.exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dordis {__version__}")
        raise typer.Exit


@app.callback(help=commands.__doc__, epilog=exits.table())
def _dordis(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...
