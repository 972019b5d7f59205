"""The files of a run: manifest, records, checkpoint, evictions, and how files are written durably."""
