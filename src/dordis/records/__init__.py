"""The files of a run: manifest, records, checkpoint, evictions; and queues of runs."""
