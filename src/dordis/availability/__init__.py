"""When clients are available and when they drop out: models and traces of real devices."""
