"""Check this installation: versions, optional packages, compiled kernels and their speed, durable writes."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from dordis import __version__
from dordis.cli.options import JsonArray
from dordis.cli.output import FOUND, make_table, print_result, show_progress

NEEDED = (
    "numpy",
    "scipy",
    "numba",
    "cryptography",
    "PyNaCl",
    "msgspec",
    "dp-accounting",
    "typer",
    "jinja2",
    "rich",
    "tomli-w",
    "aiohttp",
)
OPTIONAL = {"torch": "torch", "flwr": "flower", "ray": "ray"}
"""Optional packages that are reported, and the extra of dordis that installs each."""
COORDINATES = 1 << 20
REPEATS = 5
KNOWN = [-8, -4, 12, -2]
"""The first noise samples from the seed with the bytes 0, 1, .. 31 and variance 100; they are the same everywhere."""


@dataclass(frozen=True)
class Finding:
    """One line of the output of `dordis doctor`; `ok` is None if `value` is only reported, and not checked."""

    what: str
    value: str
    ok: bool | None = None


def doctor(as_json: JsonArray = False) -> None:
    """Check this installation: versions, kernels, speed.

    The exit code is 1 if something is missing or broken.
    """
    from rich.text import Text

    with show_progress("checking this machine"):
        findings = [*check_system(), *check_packages(), *check_kernels(), *measure_speed(), check_disk()]
    marks = {True: Text("ok", "green"), False: Text("repair this", "bold red"), None: ""}
    rows = ((finding.what, finding.value, marks[finding.ok]) for finding in findings)
    table = make_table("item", "value", "", rows=rows, title=f"dordis {__version__}")
    broken = [finding.what for finding in findings if finding.ok is False]
    verdict = f"to repair: {', '.join(broken)}" if broken else "nothing is missing: try dordis run"
    print_result(as_json, [asdict(finding) for finding in findings], table, verdict)
    if broken:
        raise typer.Exit(FOUND)


def check_system() -> list[Finding]:
    """Return the version of Python, and the operating system, processor type and number of cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Finding("Python", platform.python_version(), True),
        Finding("system", f"{platform.system()} {platform.machine()}, {cores} cores"),
    ]


def check_packages() -> list[Finding]:
    """Return the versions of required and optional packages; a missing required package is a failed check."""
    needed = {name: _version(name) for name in NEEDED}
    findings = [
        Finding(name, version or "missing: install dordis again", bool(version)) for name, version in needed.items()
    ]
    return [
        *findings,
        *(
            Finding(f"{name} (optional)", _version(name) or f"not installed; the extra {extra} has it")
            for name, extra in OPTIONAL.items()
        ),
    ]


def _version(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_kernels() -> list[Finding]:
    """Compile the kernels or load them from the cache, and compare the noise of a seed with a known answer."""
    from fractions import Fraction

    from dordis.privacy.skellam_noise import noise

    started = time.perf_counter()
    first = noise(bytes(range(32)), Fraction(100), 4).tolist()
    seconds = time.perf_counter() - started
    return [
        Finding("kernels", f"ready in {seconds:.1f} s", True),
        Finding("noise of a known seed", str(first), first == KNOWN),
    ]


def measure_speed() -> list[Finding]:
    """Measure how long the operations take that dominate a round: masks, noise, key agreement, signatures."""
    import secrets
    from fractions import Fraction

    import numpy as np

    from dordis.crypto import agreement, prg, signature
    from dordis.privacy.skellam_noise import add_noise

    vector = np.zeros(COORDINATES, np.uint32)
    streams = [prg.Stream.from_bytes(secrets.token_bytes(prg.STREAM_BYTES)) for _ in range(4)]
    key, peer = agreement.generate(secrets.token_bytes), agreement.generate(secrets.token_bytes)
    signing = signature.generate(secrets.token_bytes)
    signed = signature.sign(signing, b"doctor")
    masking = _best_time(lambda: prg.add_masks(vector, streams, [], 20)) / (len(streams) * COORDINATES)
    drawing = _best_time(lambda: add_noise(vector, secrets.token_bytes(32), Fraction(1000))) / COORDINATES
    agreeing = _best_time(lambda: agreement.agree(key, agreement.public_key(peer)))
    verifying = _best_time(lambda: signature.verify(signature.public_key(signing), b"doctor", signed))
    return [
        Finding("masks, to draw and add", f"{masking * 1e9:.2f} ns for each coordinate and neighbour"),
        Finding("noise, to draw and add", f"{drawing * 1e9:.2f} ns for each coordinate"),
        Finding("key agreement (X25519)", f"{agreeing * 1e6:.0f} us"),
        Finding("signature to verify (Ed25519)", f"{verifying * 1e6:.0f} us"),
    ]


def _best_time(work: Callable[[], object]) -> float:
    """Call `work` several times; return the CPU seconds that this thread used in the fastest call."""
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)


def check_disk() -> Finding:
    """Check that files can be written durably in the current directory, and report the time of one write."""
    import tempfile

    from dordis import durable_files

    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            started = time.perf_counter()
            durable_files.write_new(Path(folder) / "record", b"x")
            took = time.perf_counter() - started
    except OSError as error:
        return Finding("files of a run", f"this directory is not writable: {error.strerror}", False)
    return Finding("files of a run", f"a durable write takes {took * 1e3:.1f} ms here", True)
