"""Which clients take part in a round: the beacon, the selection methods, and how many colluders they admit."""
