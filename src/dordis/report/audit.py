"""The audit archive of a run: one file with its evidence, and a page that says what to check and what that proves.

The same files always give the same bytes of the archive: files are sorted, and stored without compression and without
times.  `contents.json` has the hashes of the files, so an altered byte is detected, inside and outside of the files.
But somebody can alter a file and `contents.json` together.  Only the SHA-256 of the original archive, which
`write_archive` returned, detects every alteration.
"""

import hashlib
import io
import platform
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from importlib import metadata
from pathlib import Path, PurePosixPath

import msgspec

from dordis import __version__, wire
from dordis.durable_files import write_atomically
from dordis.errors import InputError, LedgerDamaged, explain_os_errors
from dordis.identity.registry import Registry, SignedRegistry
from dordis.ledger.verification import VerifiedReceipt, VerifiedRun, verify_run
from dordis.records import run_records
from dordis.records.run_records import (
    CONFIG,
    EVICTIONS,
    FAILURES,
    LEDGER,
    MANIFEST,
    METRICS,
    MODEL,
    RECEIPTS,
    REGISTRY,
    RESULT,
    ROUNDS,
)
from dordis.report.facts import read_facts
from dordis.report.numbers import format_number
from dordis.report.page import render_audit, render_report

CONTENTS, PAGE, REPORT, VERSIONS, RUN = "contents.json", "audit.html", "report.html", "versions.json", "run"
LARGEST = 1 << 30
"""Largest size of an archive that is read, in bytes."""
_FILES = (CONFIG, MANIFEST, ROUNDS, METRICS, FAILURES, EVICTIONS, LEDGER, RESULT, REGISTRY)
_DEPENDENCIES = ("numpy", "scipy", "numba", "cryptography", "PyNaCl", "msgspec", "dp-accounting")


def write_archive(path: Path, target: Path) -> str:
    """Verify the run at `path`, write its audit archive, and return the archive's SHA-256 in hex."""
    if target.exists():
        raise InputError(f"{target} exists: name a new file for the audit archive")
    run = run_records.load_run(path)
    verified = verify_run(run)
    facts = read_facts([path])
    members = {f"{RUN}/{name}": data for name, data in read_evidence(path)}
    members[REPORT] = render_report(facts).encode()
    members[VERSIONS] = msgspec.json.format(msgspec.json.encode(list_versions()), indent=1) + b"\n"
    members[PAGE] = render_audit(facts[0], verified, sorted([*members, PAGE, CONTENTS])).encode()
    members[CONTENTS] = _hash_members(members)
    data = pack_archive(members)
    with explain_os_errors(f"write {target}"):
        write_atomically(target, data)
    return hashlib.sha256(data).hexdigest()


def verify_archive(path: Path, registry: Registry | SignedRegistry | None = None) -> VerifiedRun:
    """Verify an audit archive and return what was verified; raise LedgerDamaged if the archive is damaged or altered.

    Signatures are verified with the keys of the `registry`.  Without a `registry` the one in the archive is used, which
    the server wrote.
    """
    members = read_archive(path)
    with tempfile.TemporaryDirectory(prefix="dordis-audit-") as folder:
        for name, data in members.items():
            if name.startswith(f"{RUN}/"):
                copy = Path(folder) / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(data)
        return verify_run(run_records.load_run(Path(folder) / RUN), registry)


def read_archive(path: Path) -> dict[str, bytes]:
    """Return the files in an archive by name; raise LedgerDamaged if a byte differs from what `pack_archive` writes."""
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"the audit archive {path} has more than {LARGEST} bytes")
        data = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: _read_member(archive, info) for info in archive.infolist()}
    except OSError as error:
        raise InputError(f"cannot read the audit archive {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise LedgerDamaged(f"the audit archive {path} is damaged: {error}") from None
    stated = members.get(CONTENTS, b"")
    contents = {name: content for name, content in members.items() if name != CONTENTS}
    if _hash_members(contents) != stated:
        raise LedgerDamaged(f"the audit archive {path} is not as it was exported: {_name_altered(contents, stated)}")
    if pack_archive(members) != data:
        raise LedgerDamaged(f"the audit archive {path} is not as it was exported: bytes around its files were altered")
    return members


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    name = PurePosixPath(info.filename)
    if name.is_absolute() or ".." in name.parts or info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"dordis writes no member '{info.filename[:80]}'")
    return archive.read(info)


def _hash_members(members: Mapping[str, bytes]) -> bytes:
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(members.items())}
    return msgspec.json.format(msgspec.json.encode(hashes), indent=1) + b"\n"


def _name_altered(members: Mapping[str, bytes], stated: bytes) -> str:
    """Return a clause that names the first file whose hash differs from its hash in `contents.json`.

    `stated` is the content of `contents.json`; if all hashes agree, the clause names `contents.json`.
    """
    try:
        hashes = msgspec.json.decode(stated, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"{CONTENTS} was altered"
    found = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    altered = sorted(name for name in {*hashes, *found} if hashes.get(name) != found.get(name))
    return f"{altered[0]} or its hash in {CONTENTS} was altered" if altered else f"{CONTENTS} was altered"


def pack_archive(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of an archive of these files; the same files always give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(members.items()):
            info = zipfile.ZipInfo(name)  # the date is 1980 in every archive
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, data)
    return packed.getvalue()


def read_evidence(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a run that is evidence; none of these files has a model or a secret.

    The checkpoint is included without the model: only its lines about the last finished round.
    """
    for name in _FILES:
        if (path / name).exists():
            yield name, (path / name).read_bytes()
    for receipt in sorted((path / RECEIPTS).glob("*.json")):
        yield f"{RECEIPTS}/{receipt.name}", receipt.read_bytes()
    if lines := run_records.read_checkpoint_lines(path / MODEL):
        yield MODEL, run_records.encode_checkpoint(lines, {})


def list_versions() -> dict[str, str]:
    """Return the versions of dordis, its protocol, Python and the packages on which the evidence depends."""
    versions = {"dordis": __version__, "protocol": str(wire.VERSION), "python": platform.python_version()}
    return versions | {name: metadata.version(name) for name in _DEPENDENCIES}


def explain_receipt(verified: VerifiedReceipt, *, has_registry: bool) -> list[str]:
    """Return sentences that explain a verified receipt: its content, what it proves and what it does not prove."""
    receipt, parameters = verified.receipt, verified.parameters
    least, most = (f(map(len, receipt.survivors)) for f in (min, max))
    survived = f"{least}" if least == most else f"{least} to {most}, by chunk,"
    lines = [
        f"This is the receipt of the round with index {receipt.index} of the run {receipt.run[:16]}.",
        f"{len(receipt.clients)} clients were in it; the updates of {survived} are in the sum.",
        f"The round was agreed with the protocol '{receipt.protocol}' against a {parameters.mode} server. At most "
        f"{parameters.tolerance} clients could drop out, and up to {parameters.colluders} could collude with the "
        "server.",
        _explain_noise(verified),
    ]
    if receipt.epsilon is not None:
        lines.append(
            f"After this round the client that had spent most had spent epsilon {format_number(receipt.epsilon)}. This "
            "is what the server stated; dordis verify RUN recomputes it from the ledger."
        )
    lines.append(_explain_signatures(verified, has_registry))
    lines.append(
        "Not proved by this receipt: that clients trained honestly or drew their noise as the protocol says, that the "
        "model came from this sum, and that the run has no rounds without a receipt."
    )
    return lines


def _explain_noise(verified: VerifiedReceipt) -> str:
    planned, charged = (
        [float(Fraction(text)) for text in texts] for texts in (verified.receipt.planned, verified.receipt.charged)
    )
    if not any(planned):
        return "The protocol itself added no noise to the sum."
    ratio = min(kept / wanted for kept, wanted in zip(charged, planned, strict=True) if wanted)
    return (
        f"Noise of variance {format_number(planned[0])} was planned, in squared integer units; what counts for privacy "
        f"is {format_number(100 * ratio)} % of it. This follows from the plan and the survivors, and was recomputed."
    )


def _explain_signatures(verified: VerifiedReceipt, has_registry: bool) -> str:
    if verified.is_signed:
        count = min(map(len, verified.signers))
        return (
            f"At least {count} survivors signed the list of survivors and the hash of the parameters; the signatures "
            "were verified with the keys of the registry. The server could not have invented another list without "
            "the keys of that many clients."
        )
    if any(verified.receipt.signatures):
        return (
            "Survivors signed their list, but the signatures were not verified: give --registry."
            if not has_registry
            else "Not every chunk has signatures."
        )
    return "Nobody signed the list of survivors: it is the word of the server, which this protocol trusts to be honest."
