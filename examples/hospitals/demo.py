"""Ten hospitals and a server on one machine, each a process of its own: python examples/hospitals/demo.py [FOLDER].

Every hospital has a file of 200 made-up patients.  With `--kill ROUND` one of them is killed in the round after ROUND,
and stays away: epsilon does not change.  If a hospital refuses to take part, the demo ends with its reason and exit
code 2.  On machines of their own, each party runs its own lines.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread

from dordis.apps.tables.synthetic import draw_hospitals

HERE = Path(__file__).parent
HOSPITALS, PATIENTS, PUBLIC = 10, 200, 1000
DORDIS = [sys.executable, "-m", "dordis"]
sys.path.insert(0, str(HERE.parent / "deployment"))


def main() -> None:
    """Make files and keys, start the server and the hospitals, and wait for the end of the run."""
    from enrolment import enrol

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="where files, keys and records go; a temporary folder if not given")
    parser.add_argument("--kill", type=int, default=0, metavar="ROUND", help="kill a hospital after this round")
    parser.add_argument("-c", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp(prefix="dordis-hospitals-")).resolve()
    names = [f"hospital-{u:02}" for u in range(1, HOSPITALS + 1)]
    enrol(folder, names)
    write_patients(folder)
    sys.exit(run(folder, names, given.kill, [word for key in given.keys for word in ("-c", key)]))


def run(folder: Path, names: list[str], kill: int, changes: list[str]) -> int:
    """Run the server and the hospitals; return the exit code of the server, or 2 if a hospital refuses to take part."""
    config, registry = folder / "hospitals.toml", "federation/registry.json"
    config.write_text((HERE / "hospitals.toml").read_text())
    serve = [*DORDIS, "serve", config, "--identity", "server.key", "--registry", registry, *changes]
    server = subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    join = [*DORDIS, "join", "https://localhost:8766", "--registry", registry, "--config", config, *changes]
    clients = {name: start_hospital(folder, name, join) for name in names}
    refused: list[str] = []
    watches = [Thread(target=watch, args=(name, client, server, refused)) for name, client in clients.items()]
    for thread in watches:
        thread.start()
    try:
        for line in server.stdout or ():
            print(line, end="", flush=True)
            if kill and re.search(rf"\bround {kill}\b", line):
                clients[names[0]].kill()
                print(f"killed {names[0]}", flush=True)
                kill = 0
        code = server.wait()
    finally:
        for process in (server, *clients.values()):
            process.terminate()
            process.wait()
        for thread in watches:
            thread.join()
        server.communicate()
        print(f"paths above are in {folder}", flush=True)
    if refused:
        print(f"{refused[0]} refused to take part: {read_reason(folder / f'{refused[0]}.log')}", file=sys.stderr)
    return 2 if refused else code


def start_hospital(folder: Path, name: str, join: list[str | Path]) -> subprocess.Popen[bytes]:
    """Start a hospital with its key and its file of patients; what it has to say is in its log."""
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen([*join, "--identity", f"{name}.key", "--data", f"{name}.csv"], cwd=folder, stderr=log)


def watch(name: str, client: subprocess.Popen[bytes], server: subprocess.Popen[str], refused: list[str]) -> None:
    """Wait for the end of a hospital; if it has refused to take part, note that and stop the server."""
    if client.wait() > 0 and server.poll() is None:  # below 0 it was killed, with 0 the run is over
        refused.append(name)
        server.terminate()


def read_reason(log: Path) -> str:
    """Return the last line of a hospital's log."""
    lines = log.read_text().split("\n")
    reason = next((line for line in reversed(lines) if line.strip()), "it left no reason in its log")
    return reason.removeprefix("dordis: ")


def write_patients(folder: Path) -> None:
    """Write a file for each hospital, and one of public patients to test with."""
    rows = draw_hospitals(HOSPITALS, PATIENTS, seed=1)
    for u in range(1, HOSPITALS + 1):
        name = f"hospital-{u:02}"
        write_rows(folder / f"{name}.csv", rows, [i for i, held in enumerate(rows["hospital"]) if held == name])
    public = draw_hospitals(1, PUBLIC, seed=2)
    write_rows(folder / "public.csv", public, range(len(public["ill"])))


def write_rows(path: Path, rows: dict[str, list[object]], places: "list[int] | range") -> None:
    """Write some rows of a table."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [name for name in rows if name != "hospital"]
        writer.writerow(names)
        writer.writerows([rows[name][i] for name in names] for i in places)


if __name__ == "__main__":
    main()
