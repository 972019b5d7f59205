"""Write frozen.json, 200 runs from seeds by their digests: python -m tests.vectors.make_frozen.

`--check` compares instead, and `--show N` prints every message of run N by its digest, so that two versions of the code
can be compared line by line.  Configurations are kept when they are there already: `--draw` draws them anew.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import same_arithmetic as same_arithmetic

# isort: split
from dordis.config.reading import read_config
from dordis.errors import DordisError
from dordis.simulation.run import prepare
from tests.seeded_runs import AXES, Choice, arithmetic, freeze, settings

COUNT = 200
PATH = Path(__file__).with_name("frozen.json")
NOTE = (
    "Digests of whole runs: of every message of every client in its order, of the ledger, of the rounds' records"
    " without times and of the metrics, of the receipts, and of the model in the end; tests/seeded_runs.py makes them."
)
WIDE = 10
"""So many runs have cohorts that are wide enough for a sparse graph; they take longest."""


def draw() -> list[Choice]:
    """Draw configurations that are valid, none of them twice: first one for every pair of choices, then any."""
    rng, chosen = random.Random("frozen"), []
    pairs = [
        {a: x, b: y} for a in AXES for b in AXES if a < b for x in AXES[a] for y in AXES[b] if "wide" not in (x, y)
    ]
    rng.shuffle(pairs)
    pairs += [{"size": "wide", "protocol": "secagg+", "fidelity": f} for f in AXES["fidelity"]] * (WIDE // 2)
    for fixed in pairs:
        if not any(fixed.items() <= choice.items() for choice in chosen) or "wide" in fixed.values():
            found = completed(fixed, rng, chosen)
            chosen += [found] if found else []
    while len(chosen) < COUNT:
        found = completed({}, rng, chosen)
        chosen += [found] if found else []
    return chosen


def completed(fixed: Choice, rng: random.Random, chosen: list[Choice]) -> Choice | None:
    """Return a valid configuration with these choices, if one is found soon."""
    for _ in range(60):
        choice = {axis: fixed.get(axis) or rng.choice([name for name in AXES[axis] if name != "wide"]) for axis in AXES}
        if choice not in chosen and is_valid(choice):
            return choice
    return None


def is_valid(choice: Choice) -> bool:
    """Tell whether such a run can be prepared."""
    try:
        prepare(read_config(keys=settings(choice)))
    except DordisError:
        return False
    return True


def stored() -> dict[str, Any]:
    """Return what was frozen."""
    return json.loads(PATH.read_text())


def write(choices: list[Choice]) -> None:
    """Run all, and write what is frozen, a line for each."""
    rows = [json.dumps({"choice": choice, **freeze(choice, i)[0]}) for i, choice in enumerate(choices)]
    head = json.dumps({"note": NOTE, "arithmetic": arithmetic()}, indent=1)[:-2]
    PATH.write_text(f'{head},\n "runs": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n")


def shown(choice: Choice, number: int) -> Iterator[str]:
    """Give a line for the digests of a run, and one for every message: client, chunk, kind, digest."""
    frozen, transcript = freeze(choice, number)
    yield json.dumps({"choice": choice, **frozen}) + "\n"
    for (u, chunk), lines in sorted(transcript.lines.items()):
        yield from (f"{u} {chunk} {kind} {found}\n" for kind, found in lines)


def changed() -> Iterator[str]:
    """Give a line for every run that is not what it was: its number, what differs, and its configuration."""
    for i, run in enumerate(stored()["runs"]):
        found = {"choice": run["choice"], **freeze(run["choice"], i)[0]}
        if found != run:
            yield f"{i} {','.join(name for name in run if run[name] != found[name])} {run['choice']}\n"


def main() -> None:
    """Write, compare, or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--show", type=int)
    given = parser.parse_args()
    choices = draw() if given.draw or not PATH.exists() else [run["choice"] for run in stored()["runs"]]
    if given.show is not None:
        sys.stdout.writelines(shown(choices[given.show], given.show))
    elif given.check:
        sys.stdout.writelines(changed())
    else:
        write(choices)


if __name__ == "__main__":
    main()
