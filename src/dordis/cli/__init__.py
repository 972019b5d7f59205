"""The command line: options and exit codes here, each command's work in a file of its own, imported when it is run.

Exit codes: 0 done, 2 refused with one line on stderr, 130 interrupted.  Anything else is a bug and keeps its traceback.
"""

import sys
from typing import Annotated

import typer

from dordis import __version__
from dordis.errors import DordisError, InputError

# Plain tracebacks, because pretty ones may print local variables, and those may be secrets.
app = typer.Typer(name="dordis", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Run the command line and exit."""
    try:
        sys.exit(app(prog_name="dordis", standalone_mode=False))
    except typer.TyperException as error:
        _refuse(error.format_message())
    except typer.Abort:
        sys.exit(130)
    except DordisError as error:
        _refuse(str(error))


def _refuse(reason: str) -> None:
    typer.echo("dordis: " + " ".join(reason.split()), err=True)
    sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dordis {__version__}")
        raise typer.Exit


@app.callback()
def _dordis(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning with distributed differential privacy that survives client dropout."""


@app.command("demo")
def _demo(
    clients: Annotated[int, typer.Option(help="How many clients take part.")] = 50,
    dropped: Annotated[int, typer.Option(help="How many of them vanish on the way.")] = 5,
) -> None:
    """Compute a private mean over simulated clients, some of which drop out."""
    from dordis.cli.demo import demo

    demo(clients, dropped)


@app.command("plan")
def _plan(
    clients: Annotated[int, typer.Option(help="How many clients a round has.")],
    graph: Annotated[bool, typer.Option("--graph", help="Plan the graph of SecAgg+.")] = False,
    dropout: Annotated[float | None, typer.Option(help="Which part of them may drop out; 0.1 if not given.")] = None,
    tolerance: Annotated[int | None, typer.Option(help="How many of them may drop out, instead of --dropout.")] = None,
    colluders: Annotated[int, typer.Option(help="How many of them may collude with the server.")] = 1,
    mode: Annotated[
        str, typer.Option(help="semi-honest or malicious: the server that is guarded against.")
    ] = "malicious",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose the parameters of a round; for now those of the graph, with --graph."""
    if not graph:
        raise InputError("plan needs --graph: there is nothing else to plan yet")
    from dordis.cli.graph import plan

    plan(clients, dropout, tolerance, colluders, mode, as_json)
