"""Choose how texts are counted without looking at the tested users: a tenth of the clients is held out instead.

python -m benchmarks.held_out_texts --preset chat --data-dir DIR --try share=0.5 --try share=0.9 [-c KEY=VALUE]

One JSON object for each option that is tried is printed, with the perplexity of the training texts of the clients who
were held out; the users whom a run of this seed tests are not read into any figure.
"""

import argparse
import json
import tempfile
from pathlib import Path

import msgspec
import numpy as np

import dordis
from dordis.apps.learning.formats import SPECIAL, UserData
from dordis.apps.text.app import Settings, find_texts
from dordis.apps.text.model import draw_users, read_symbols
from dordis.config import reading

PARTS = 10
_SEED = 2026


def held_out(clients: dict[str, UserData]) -> tuple[dict[str, UserData], dict[str, UserData]]:
    """Return the clients who stay, and a part of them who are there to test with."""
    users = list(clients.items())
    out = np.random.default_rng(_SEED).permutation(len(users)) < len(users) // PARTS
    stay, test = (
        {user: data for (user, data), gone in zip(users, out, strict=True) if gone == part} for part in (0, 1)
    )
    return stay, test


def save(users: dict[str, UserData], folder: Path) -> None:
    """Write a file of LEAF's."""
    folder.mkdir()
    sizes = [len(data.y) for data in users.values()]
    file = {"users": list(users), "num_samples": sizes, "user_data": users}
    (folder / "all.json").write_bytes(msgspec.json.encode(file))


def main() -> None:
    """Run every option that is tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--try", dest="tried", action="append", required=True)
    parser.add_argument("-c", dest="keys", action="append", default=[])
    given = parser.parse_args()
    preset = reading.read_config(
        None, given.preset, [f"app.options.data_dir='{given.data_dir.resolve()}'", *given.keys]
    )
    settings, seed = msgspec.convert(preset.app.options, Settings), preset.simulation.seed
    known = settings.vocabulary if isinstance(settings.vocabulary, int) else Path(settings.vocabulary)
    texts = find_texts(settings, Path())
    users = draw_users(texts, preset.federation.clients, seed, isinstance(known, int))
    stay, test = held_out(users.clients)
    with tempfile.TemporaryDirectory() as folder:
        save(stay, Path(folder) / "train")
        save(test, Path(folder) / "test")
        symbols, words = read_symbols(known, users), Path(folder) / "words.txt"
        words.write_text("\n".join(symbols.names[len(SPECIAL) :] if symbols.special else ()))
        fixed = [f"output='{folder}'", f"app.options.data='{folder}'", f"federation.clients={len(stay)}"]
        fixed += [f"app.options.vocabulary='{words}'"] if symbols.special else []
        for tried in given.tried:
            result = dordis.run(reading.read_config(None, given.preset, [*fixed, *given.keys, f"app.options.{tried}"]))
            print(json.dumps({"tried": tried, **result.metrics, "epsilon": result.epsilon}), flush=True)


if __name__ == "__main__":
    main()
