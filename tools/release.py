"""Build a release into dist/, check it, and print the steps that a person has to take: `make release`.

The wheel is installed into an environment of its own and runs a simulation there.  `dist/sbom.json` lists, in CycloneDX
format, every package that this environment has.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from dordis import __version__

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
REMAINING = f"""
{__version__} is built and checked. What remains for a person:
  1. .ci/run has passed on this commit, on a machine of its own.
  2. CHANGELOG.md has a section for {__version__} that says what changed and what is stable, and nothing under
     Unreleased; its date and that of CITATION.cff are today's.
  3. docs/first_minute.txt is recorded anew: docs/record_first_minute.
  4. git tag --sign v{__version__} && git push --tags
  5. twine upload dist/*.whl dist/*.tar.gz
  6. Publish docs/releases/{__version__}.md with dist/sbom.json and dist/SHA256SUMS.
  7. Set __version__ in src/dordis/__init__.py to the next version with .dev0.
"""


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command, and stop the release if it fails."""
    print("$", *command, flush=True)
    if code := subprocess.run(list(map(str, command)), cwd=cwd, check=False).returncode:
        sys.exit(f"the release stops: the command above ended with code {code}")


def main() -> None:
    """Build, check, install, list and hash the release."""
    if DIST.exists() and any(DIST.iterdir()):
        sys.exit(f"{DIST} is not empty: remove it first")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST)
    packages = sorted((*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")))
    run(sys.executable, "-m", "twine", "check", "--strict", *packages)
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "clean"
        run(sys.executable, "-m", "venv", clean)
        (wheel,) = DIST.glob("*.whl")
        pip = (clean / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--constraint", ROOT / "constraints.txt", wheel)
        run(clean / "bin" / "dordis", "run", "--preset", "quick", "--rounds", 2, "--quiet", cwd=Path(folder))
        sbom = ("--output-format", "JSON", "--output-file", DIST / "sbom.json", clean / "bin" / "python")
        run(sys.executable, "-m", "cyclonedx_py", "environment", *sbom)
    files = sorted(path for path in DIST.iterdir() if path.suffix in (".whl", ".gz", ".json"))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums + REMAINING)


if __name__ == "__main__":
    main()
