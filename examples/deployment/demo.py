"""A server and twelve clients on one machine, each a process of its own: python examples/deployment/demo.py.

Everything is done with the commands that a deployment uses; on machines of their own, each party runs its own lines.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from enrolment import enrol

HERE = Path(__file__).parent
CLIENTS = 12
DORDIS = [sys.executable, "-m", "dordis"]


def main() -> None:
    """Make a federation in a folder, start the server and the clients, and wait for the end of the run."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="dordis-deployment-")).resolve()
    config = HERE / "deployment.toml"
    enrol(folder, [f"client-{u}" for u in range(1, CLIENTS + 1)])
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


if __name__ == "__main__":
    main()
