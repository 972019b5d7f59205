"""Run an experiment of the paper: `python -m reproduce NAME`."""

from dordis.cli import run_app
from reproduce.commands import app

if __name__ == "__main__":
    run_app(app, "python -m reproduce")
