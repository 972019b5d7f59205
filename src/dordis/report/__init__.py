"""Reports and live pages of runs, and alerts to operators, computed from the records and events of the runs."""
