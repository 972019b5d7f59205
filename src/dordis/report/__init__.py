"""Reports of runs, computed from their records only."""
