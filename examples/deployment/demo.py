"""A server and twelve clients on one machine, each a process of its own: python examples/deployment/demo.py.

Everything is done with the commands that a deployment uses; on machines of their own, each party runs its own lines.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CLIENTS = 12
DORDIS = [sys.executable, "-m", "dordis"]


def main() -> None:
    """Make a federation in a folder, start the server and the clients, and wait for the end of the run."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="dordis-deployment-")).resolve()
    config = HERE / "deployment.toml"
    enrol(folder)
    server = subprocess.Popen(
        [*DORDIS, "serve", config, "--identity", "server.key", "--registry", "federation/registry.json"], cwd=folder
    )
    join = [*DORDIS, "join", "https://localhost:8765", "--registry", "federation/registry.json", "--config", config]
    clients = [
        subprocess.Popen([*join, "--identity", f"client-{u}.key"], cwd=folder, stderr=subprocess.DEVNULL)
        for u in range(1, CLIENTS + 1)
    ]
    try:
        code = server.wait()
    except KeyboardInterrupt:
        code = 130
    finally:
        for process in (server, *clients):
            process.terminate()
            process.wait()
    print(f"paths above are in {folder}")
    sys.exit(code)


def enrol(folder: Path) -> None:
    """Make keys where they are used, and have them approved by an authority."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = [*DORDIS, "keys"]
    names = [f"client-{u}" for u in range(1, CLIENTS + 1)]
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
    print(f"a federation of {CLIENTS} clients is in {folder}", flush=True)


if __name__ == "__main__":
    main()
