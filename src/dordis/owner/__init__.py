"""A client's owner: policy, participation count, journal, directory, and the checks on a run's manifest."""
