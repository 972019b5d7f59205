"""Evidence of a run: verify it offline without trust in the server, explain a receipt, export it to an auditor."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Authority, Json, RegistryFile, recorded_runs
from dordis.cli.output import facts_table, finite, make_table, print_result, show_progress
from dordis.errors import InputError, explain_os_errors

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.identity.registry import Registry, SignedRegistry
    from dordis.ledger.combine_runs import CombinedEpsilon
    from dordis.ledger.ledger import LedgerSummary
    from dordis.ledger.receipt import Receipt
    from dordis.ledger.verification import VerifiedReceipt, VerifiedRun
    from dordis.protocols.summing import SigningKeys


LISTED_CLIENTS = 10
"""Number of clients whose epsilon is printed, those with the largest; --json prints all."""


def verify_ledger(
    path: Annotated[Path, typer.Argument(help="A run, or its ledger.jsonl.", autocompletion=recorded_runs)],
    run: Annotated[str | None, typer.Option(help="The expected run id, in hex.")] = None,
    head: Annotated[str | None, typer.Option(help="The hash of a line that the ledger must still contain.")] = None,
    as_json: Json = False,
) -> None:
    """Check every line of a ledger.

    The epsilon of each client is computed again. The ledger of a run is also compared with the receipts and the records
    beside it.
    """
    from dordis.ledger import ledger, verification
    from dordis.records import run_records
    from dordis.records.run_records import LEDGER, MANIFEST

    file = path / LEDGER if path.is_dir() else path
    with explain_os_errors(f"read the ledger {file}"):
        is_of_run = (file.parent / MANIFEST).is_file() and file.name == LEDGER
        stored = run_records.load_run(file.parent) if is_of_run else None
        summary = ledger.verify_ledger(file, run=_read_run_id(run), head=head)
        if stored is not None:
            summary = verification.check_evidence(stored) or summary
    how = stored.manifest.how if stored else ""
    if summary.budget is None:  # a run that never stops at a budget was planned for a budget all the same
        summary = replace(summary, budget=summary.stated.budget)
    print_result(as_json, _summary_fields(summary) | {"run_as": how or None}, *_describe_summary(summary, how))
    summary.check_budget()


def add_ledgers(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, or ledgers of queries.", autocompletion=recorded_runs)
    ],
    delta: Annotated[float | None, typer.Option(help="Delta of the sum; the smallest of all if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Add up the epsilon of runs and queries over the same clients.

    A run counts with its stated epsilon: the epsilon spent or, if the run was ended early and not by its budget rule,
    the larger of budget and epsilon spent.  Clients are matched by their registered keys.  If a run has no registry
    (simulated runs, ledgers of queries), its largest epsilon is added to that of every client.
    """
    from dordis.ledger.combine_runs import combined_epsilon

    account = combined_epsilon(runs, delta)
    rows = ((str(part.path), part.how, f"{part.stated.epsilon:.4g}") for part in account.parts)
    print_result(
        as_json,
        _account_fields(account),
        make_table("run", "clients", "epsilon stated", rows=rows),
        f"together: epsilon {account.epsilon:.4g} at delta {account.delta:.4g}, the largest of all clients",
    )


def _read_run_id(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise InputError(f"--run takes the run id in hex, not '{text}'") from None


def _describe_adversary(summary: "LedgerSummary") -> str:
    """Return in words against whom a ledger's epsilon holds: not against the server if any mechanism trusts the server.

    For a mechanism that is not built in, the words say that only its author knows.
    """
    from dordis.privacy import mechanisms
    from dordis.privacy.mechanisms import NoiseFrom

    foreign = [name for name in summary.mechanisms if name not in mechanisms.TABLE]
    if foreign:
        return f"against whom, the author of '{foreign[0]}' has to say"
    noise = {mechanisms.find_builtin_mechanism(name).noise_from for name in summary.mechanisms}
    return (NoiseFrom.SERVER if NoiseFrom.SERVER in noise else NoiseFrom.CLIENTS).adversary


def _describe_summary(summary: "LedgerSummary", how: str) -> "Iterator[Table | str]":
    """Yield tables and lines: the contents of the ledger, and for whom and against whom its epsilon holds.

    `how` says how the run was executed; if it is empty, there is no line about this.
    """
    rows = {
        "lines": str(summary.lines),
        "runs before": ", ".join(run[:16] for run in summary.predecessors) or "none",
        "mechanisms": ", ".join(summary.mechanisms) or "-",
        "rounds completed": str(summary.completed),
        "rounds charged without an output": str(summary.reserved),
        "epsilon stated, delta": f"{summary.stated.epsilon:.4g}, {summary.delta:.4g}",
        "epsilon spent": f"{summary.epsilon:.4g}",
        "part of delta for graphs and draws": f"{summary.failure:.3g}",
        "budget": "none" if summary.budget is None else f"{summary.budget:.4g}",
    }
    largest = sorted(summary.clients.items(), key=lambda spent: (-spent[1], spent[0]))[:LISTED_CLIENTS]
    spenders = ((str(client), f"{epsilon:.4g}") for client, epsilon in largest)
    title = f"spent: {len(largest)} of {len(summary.clients)} clients"
    yield f"run {summary.run}\nhead {summary.head}"
    yield facts_table(rows, "the ledger is whole")
    yield make_table("client", "epsilon", rows=spenders, title=title)
    yield f"epsilon: {summary.stated.basis.value}"
    yield "epsilon: for one client, its updates replaced by zero, over the rounds it took part in"
    yield f"epsilon: {_describe_adversary(summary)}"
    yield "epsilon: dropout that depends on a client's data is outside the guarantee"
    if how:
        yield f"the run: {how}"


def _summary_fields(summary: "LedgerSummary") -> dict[str, object]:
    """Return the summary of a ledger as JSON fields; an infinite epsilon is None."""
    clients = {str(u): finite(spent) for u, spent in summary.clients.items()}
    stated = {
        "epsilon": finite(summary.stated.epsilon),
        "spent": finite(summary.epsilon),
        "stated": summary.stated.basis.value,
    }
    return asdict(summary) | stated | {"clients": clients}


def _account_fields(account: "CombinedEpsilon") -> dict[str, object]:
    parts = [{"path": str(part.path), "clients": part.how, "epsilon": part.stated.epsilon} for part in account.parts]
    return {"epsilon": account.epsilon, "delta": account.delta, "runs": parts}


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|RECEIPT|ARCHIVE",
            help="A run, one of its receipts, or an archive of dordis export.",
            autocompletion=recorded_runs,
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
        _print_receipt(verify_receipt(read_receipt(path), signing_keys(keys)), as_json)


def compare_kept(verified: "VerifiedRun", kept: Path) -> None:
    """Raise HistoryContradicted if receipts of a run differ from the receipts that one of its clients stored."""
    from dordis.owner.receipts import Shown, check_history, read_kept

    if kept.stem != verified.run.id.hex():
        raise InputError(f"{kept} is of another run: its name is the run id, and this run is {verified.run.id.hex()}")
    shown = [Shown(one.receipt.index, one.receipt.digest, one.receipt) for one in verified.receipts]
    check_history(read_kept(kept), shown, complete=True, where=kept)


def read_receipt(path: Path) -> "Receipt":
    """Read a receipt from its file."""
    from dordis.ledger.receipt import Receipt

    with explain_os_errors(f"read the receipt {path}"):
        return Receipt.from_bytes(path.read_bytes(), path.name)


def signing_keys(known: "Registry | SignedRegistry | None") -> "SigningKeys | None":
    """Return the public signing keys of a registry's members, which verify a receipt; None without a registry.

    Revoked keys are left out, even if they were valid during the run: a receipt does not say when its run began.
    """
    from dordis.identity.registry import SignedRegistry

    members = known.registry if isinstance(known, SignedRegistry) else known
    return None if members is None else members.signing_keys()


def read_registry(path: Path | None, authority: Path | None) -> "Registry | SignedRegistry | None":
    """Return the registry in the file `path`, or None if `path` is None.

    If `authority`, the file of the authority's certificate, is given, verify the signature of the registry.
    """
    from dordis.identity.certificates import load_certificate
    from dordis.identity.registry import Registry, SignedRegistry

    if path is None:
        return None
    if authority is not None:
        return SignedRegistry.load(path, load_certificate(authority))
    with explain_os_errors(f"read the registry {path}"):
        data = path.read_bytes()
    if b'"dordis membership 1"' in data:
        raise InputError(f"{path} is signed: give the authority's certificate too, --authority ca.pem")
    return Registry.from_bytes(data)


def _print_run(verified: "VerifiedRun", given: "Registry | SignedRegistry | None", as_json: bool) -> None:
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
    verified = verify_receipt(read_receipt(path), signing_keys(known))
    lines = explain_receipt(verified, has_registry=known is not None)
    print_result(as_json, {"receipt": str(path), "explanation": lines}, *lines)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run.", autocompletion=recorded_runs)],
    archive: Annotated[Path, typer.Argument(metavar="AUDIT.zip", help="The file to write.")],
    as_json: Json = False,
) -> None:
    """Write all evidence of a run as one file for an auditor.

    The file has the privacy statement, settings, ledger, receipts, versions, and a page that says what to check, how,
    and what that proves.  It has no model, no data and no secret.
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
COMMANDS = {"verify": verify_ledger, "sum": add_ledgers}
HELP = "Verify the privacy ledger of a run, or add up several ledgers."
