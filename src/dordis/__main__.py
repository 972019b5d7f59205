"""Run the command line as `python -m dordis`."""

from dordis.cli import main

main()
