"""The cost of refusing hostile messages, and of the hashes that show whom to blame."""

import json
import subprocess
import sys
from collections.abc import Callable

from benchmarks import share_hashes
from benchmarks.figure import Figure

Family = Callable[[bool], dict[str, float]]

FIGURES: dict[str, Figure] = {
    "worst_refusal_ms": Figure("ms", at_most=50, note="CPU, of over 100 hostile messages of up to 1 MB"),
    "worst_refusal_mb": Figure("MB", at_most=20, note="growth of the peak of memory, in a fresh process"),
    **share_hashes.FIGURES,
}


def hostile(quick: bool) -> dict[str, float]:
    """Measure what it costs a client to refuse the worst of the hostile messages, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.hostile_process", "10" if quick else "1"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    costs = [json.loads(line) for line in printed.splitlines()]
    accepted = [name for name, _, _, refused in costs if not refused]
    if accepted:
        raise AssertionError(f"these messages were not refused: {', '.join(accepted)}")
    return {
        "worst_refusal_ms": max(milliseconds for _, milliseconds, _, _ in costs),
        "worst_refusal_mb": max(megabytes for _, _, megabytes, _ in costs),
    }


FAMILIES: tuple[Family, ...] = (hostile, share_hashes.run)


def run(quick: bool) -> dict[str, float]:
    """Measure everything."""
    values: dict[str, float] = {}
    for family in FAMILIES:
        values |= family(quick)
    return values
