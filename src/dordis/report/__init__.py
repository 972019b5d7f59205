"""Reports: everything is drawn from the records of runs, nothing is parsed from logs."""
