"""Verify a receipt, and explain in words what it contains and proves."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Authority, Json, RegistryFile
from dordis.cli.output import print_result


def explain(
    path: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt: RUN/receipts/000000.json.")],
    registry: RegistryFile = None,
    authority: Authority = None,
    as_json: Json = False,
) -> None:
    """Verify a receipt, and explain in words what it proves."""
    from dordis.cli.commands.verify import read_receipt, read_registry
    from dordis.ledger.verification import verify_receipt
    from dordis.report.audit import explain_receipt

    known = read_registry(registry, authority)
    verified = verify_receipt(read_receipt(path), None if known is None else known.signing_keys())
    lines = explain_receipt(verified, has_registry=known is not None)
    print_result(as_json, {"receipt": str(path), "explanation": lines}, *lines)
