"""Make keys for a server and clients in one folder, with the commands that each party runs on its own machine."""

import subprocess
import sys
from pathlib import Path

DORDIS = [sys.executable, "-m", "dordis"]


def enrol(folder: Path, names: list[str]) -> None:
    """Make keys where they are used, and have them approved by an authority."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = [*DORDIS, "keys"]
    subprocess.run([*keys, "ca", "federation"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    hosts = ["--server", "localhost", "--server", "127.0.0.1"]
    asking = [
        subprocess.Popen([*keys, "request", f"{name}.key", *options], cwd=folder, stdout=subprocess.DEVNULL)
        for name, options in [("server", hosts), *((name, []) for name in names)]
    ]
    codes = [process.wait() for process in asking]
    if any(codes):
        sys.exit("a key could not be made: see above")
    requests = [f"{name}.request" for name in ("server", *names)]
    subprocess.run([*keys, "approve", "federation", *requests], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    print(f"a federation of {len(names)} clients is in {folder}", flush=True)
