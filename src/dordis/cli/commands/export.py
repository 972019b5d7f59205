"""Write the evidence of a run as one file for an auditor."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json, finished_runs
from dordis.cli.output import print_result, show_progress
from dordis.errors import InputError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run.", autocompletion=finished_runs)],
    archive: Annotated[Path, typer.Argument(metavar="AUDIT.zip", help="The file to write.")],
    as_json: Json = False,
) -> None:
    """Write all evidence of a run as one file for an auditor.

    It has the privacy statement, settings, ledger, receipts, versions, and a page that says what to check, how, and
    what that proves. It has no model, no data and no secret.
    """
    from dordis.report.audit import write_archive

    if archive.suffix != ".zip":
        raise InputError(f"an audit archive must end with .zip: name it {archive.name}.zip, not {archive.name}")
    with show_progress("verifying the run"):
        digest = write_archive(run, archive)
    print_result(
        as_json,
        {"archive": str(archive), "sha256": digest},
        str(archive),
        f"sha256 {digest}: publish it, or send it to the auditor separately from the archive",
    )
