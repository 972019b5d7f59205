"""Look at this machine: versions, optional parts, whether the kernels work and how fast they are, what is missing."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from dordis import __version__
from dordis.cli.exits import FOUND
from dordis.cli.options import JsonArray
from dordis.cli.tables import show, table, working

NEEDED = ("numpy", "scipy", "numba", "cryptography", "PyNaCl", "msgspec", "dp-accounting", "typer", "rich", "tomli-w")
COORDINATES = 1 << 20
REPEATS = 5
KNOWN = [-8, -4, 12, -2]
"""The first noise of the seed 0, 1, .. 31 at variance 100: the same on every machine."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `ok` is None where there is nothing to judge."""

    what: str
    value: str
    ok: bool | None = None


def doctor(as_json: JsonArray = False) -> None:
    """Look at this machine: versions, kernels, speed.

    The exit code is 1 if something is missing.
    """
    from rich.text import Text

    with working("looking at this machine"):
        findings = [*system(), *packages(), *kernels(), *speeds(), disk()]
    marks = {True: Text("ok", "green"), False: Text("mend this", "bold red"), None: ""}
    rows = ((finding.what, finding.value, marks[finding.ok]) for finding in findings)
    shown = table("what", "value", "", rows=rows, title=f"dordis {__version__}")
    show(as_json, [asdict(finding) for finding in findings], shown)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(FOUND)


def system() -> list[Finding]:
    """Look at the interpreter and the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Finding("Python", platform.python_version(), True),
        Finding("system", f"{platform.system()} {platform.machine()}, {cores} cores"),
    ]


def packages() -> list[Finding]:
    """Look for what is needed, and for what is optional."""
    needed = {name: _version(name) for name in NEEDED}
    findings = [
        Finding(name, version or "missing: install dordis again", bool(version)) for name, version in needed.items()
    ]
    return [*findings, Finding("torch (optional)", _version("torch") or "train torch models")]


def _version(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def kernels() -> list[Finding]:
    """Compile the kernels or load them from the cache, and compare the noise of a seed with a known answer."""
    from fractions import Fraction

    from dordis.privacy.noise import noise

    started = time.perf_counter()
    first = noise(bytes(range(32)), Fraction(100), 4).tolist()
    seconds = time.perf_counter() - started
    return [
        Finding("kernels", f"ready in {seconds:.1f} s", True),
        Finding("noise of a seed", str(first), first == KNOWN),
    ]


def speeds() -> list[Finding]:
    """Measure what rounds are made of."""
    import secrets
    from fractions import Fraction

    import numpy as np

    from dordis.crypto import agreement, prg, signature
    from dordis.privacy.noise import add_noise

    vector = np.zeros(COORDINATES, np.uint32)
    streams = [prg.Stream.of(secrets.token_bytes(prg.STREAM_BYTES)) for _ in range(4)]
    key, peer = agreement.generate(secrets.token_bytes), agreement.generate(secrets.token_bytes)
    signing = signature.generate(secrets.token_bytes)
    signed = signature.sign(signing, b"doctor")
    masking = best(lambda: prg.add_masks(vector, streams, [], 20)) / (len(streams) * COORDINATES)
    drawing = best(lambda: add_noise(vector, secrets.token_bytes(32), Fraction(1000))) / COORDINATES
    agreeing = best(lambda: agreement.agree(key, agreement.public(peer)))
    verifying = best(lambda: signature.verify(signature.public(signing), b"doctor", signed))
    return [
        Finding("masks", f"{masking * 1e9:.2f} ns a coordinate and key"),
        Finding("noise", f"{drawing * 1e9:.2f} ns a sample"),
        Finding("X25519 with public key", f"{agreeing * 1e6:.0f} us"),
        Finding("Ed25519 verification with public key", f"{verifying * 1e6:.0f} us"),
    ]


def best(work: Callable[[], object]) -> float:
    """Return the shortest of several runs, in seconds of this thread."""
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)


def disk() -> Finding:
    """See whether records can be written durably here."""
    import tempfile

    from dordis.federation import durable

    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            started = time.perf_counter()
            durable.create(Path(folder) / "record", b"x")
            took = time.perf_counter() - started
    except OSError as error:
        return Finding("records", f"this folder cannot be written to: {error.strerror}", False)
    return Finding("records", f"a durable write takes {took * 1e3:.1f} ms here", True)
