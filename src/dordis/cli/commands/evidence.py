"""Evidence of a run: verify it offline without trust in the server, explain a receipt, export all for an auditor."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Authority, Json, RegistryFile, finished_runs
from dordis.cli.output import facts_table, finite, print_result, show_progress
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.identity.registry import Registry
    from dordis.ledger.receipt import Receipt
    from dordis.ledger.verification import VerifiedReceipt, VerifiedRun


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|RECEIPT|ARCHIVE",
            help="A run, one of its receipts, or an archive of dordis export.",
            autocompletion=finished_runs,
        ),
    ],
    registry: RegistryFile = None,
    authority: Authority = None,
    kept: Annotated[
        Path | None,
        typer.Option(help="The history that a client stored (receipts/RUN.jsonl), which the run must agree with."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify a run, a receipt or an audit archive.

    Nothing is sent anywhere, and the server is not trusted: hashes, noise, charges and epsilon are computed again, and
    signatures are verified with the keys of the registry. Get the registry from the authority, not from the server.
    """
    from dordis.ledger.verification import verify_receipt, verify_run
    from dordis.records import run_records
    from dordis.report.audit import verify_archive

    keys = read_registry(registry, authority)
    if path.is_dir() or path.suffix == ".zip":
        archived = not path.is_dir()
        verified = verify_archive(path, keys) if archived else verify_run(run_records.load_run(path), keys)
        if kept is not None:
            compare_kept(verified, kept)
        _print_run(verified, keys, as_json)
    elif kept is not None:
        raise InputError("--kept is compared with a run or an archive, not with one receipt")
    else:
        _print_receipt(verify_receipt(read_receipt(path), None if keys is None else keys.signing_keys()), as_json)


def compare_kept(verified: "VerifiedRun", kept: Path) -> None:
    """Raise HistoryContradicted if the receipts of a run differ from those that one of its clients stored."""
    from dordis.owner.receipts import Shown, check_history, read_kept

    if kept.stem != verified.run.id.hex():
        raise InputError(f"{kept} is of another run: its name is the run id, and this run is {verified.run.id.hex()}")
    shown = [Shown(one.receipt.index, one.receipt.digest, one.receipt) for one in verified.receipts]
    check_history(read_kept(kept), shown, complete=True, where=kept)


def read_receipt(path: Path) -> "Receipt":
    """Read a receipt from its file."""
    from dordis.ledger.receipt import Receipt

    try:
        return Receipt.from_bytes(path.read_bytes(), path.name)
    except OSError as error:
        raise InputError(f"cannot read the receipt {path}: {error.strerror}") from None


def read_registry(path: Path | None, authority: Path | None) -> "Registry | None":
    """Return the registry in a file, checked against the authority's signature if a certificate is given.

    None without a `path`.
    """
    from dordis.identity.certificates import load_certificate
    from dordis.identity.registry import Registry, SignedRegistry

    if path is None:
        return None
    if authority is not None:
        return SignedRegistry.load(path, load_certificate(authority)).registry
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the registry {path}: {error.strerror}") from None
    if b'"dordis membership 1"' in data:
        raise InputError(f"{path} is signed: give the authority's certificate too, --authority ca.pem")
    return Registry.from_bytes(data)


def _print_run(verified: "VerifiedRun", given: "Registry | None", as_json: bool) -> None:
    run, summary = verified.run, verified.summary
    whose = "the given registry" if given is not None else "the registry that the server stored"
    signed = f"{verified.signed_rounds} of {len(verified.receipts)}, with the keys of {whose}"
    if not verified.has_registry:
        signed = "not verified: give --registry"
    elif not any(any(one.receipt.signatures) for one in verified.receipts):
        signed = "none: the run trusted its server to be honest"
    rows = {
        "run": run.id.hex(),
        "receipts": f"{len(verified.receipts)}, each names the one before it",
        "parameters, noise and charges": "recomputed, and as stated",
        "survivors signed by a quorum": signed,
        "epsilon stated, delta": "nothing is proved"
        if summary is None
        else f"{summary.stated.epsilon:.4g}, {summary.delta:.4g}",
    }
    fields = {
        "run": run.id.hex(),
        "rounds": len(verified.receipts),
        "signed": verified.signed_rounds,
        "registry": "given" if given is not None else "stored" if verified.has_registry else None,
        "epsilon": None if summary is None else finite(summary.stated.epsilon),
        "spent": None if summary is None else finite(summary.epsilon),
        "run_as": run.manifest.how,
    }
    print_result(
        as_json,
        fields,
        facts_table(rows, "the evidence agrees"),
        f"the run: {run.manifest.how}",
        "not proved: that clients trained and drew noise honestly, metrics and times, runs that you do not know of; a "
        "server that rewrites all files is exposed by receipts that clients kept",
    )


def _print_receipt(verified: "VerifiedReceipt", as_json: bool) -> None:
    receipt = verified.receipt
    signed = f"by {min(map(len, verified.signers))} clients or more" if verified.is_signed else "not verified"
    if not verified.is_signed and not any(receipt.signatures):
        signed = "not signed: the round trusted its server to be honest"
    rows = {
        "run": receipt.run,
        "round index": str(receipt.index),
        "clients": str(len(receipt.clients)),
        "survivors": ", ".join(map(str, map(len, receipt.survivors))),
        "parameters and noise": "recomputed, and as stated",
        "survivors signed": signed,
    }
    fields = {
        "run": receipt.run,
        "index": receipt.index,
        "clients": len(receipt.clients),
        "survivors": [len(chunk) for chunk in receipt.survivors],
        "signed": verified.is_signed,
    }
    words = "the epsilon in it is the server's word: verify the run, which has the ledger"
    print_result(as_json, fields, facts_table(rows, "the receipt agrees with itself"), words)


def explain(
    path: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt: RUN/receipts/000000.json.")],
    registry: RegistryFile = None,
    authority: Authority = None,
    as_json: Json = False,
) -> None:
    """Verify a receipt, and explain in words what it proves."""
    from dordis.ledger.verification import verify_receipt
    from dordis.report.audit import explain_receipt

    known = read_registry(registry, authority)
    verified = verify_receipt(read_receipt(path), None if known is None else known.signing_keys())
    lines = explain_receipt(verified, has_registry=known is not None)
    print_result(as_json, {"receipt": str(path), "explanation": lines}, *lines)


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


TOP_LEVEL = (verify, explain, export)
