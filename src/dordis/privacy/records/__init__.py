"""Records as the unit of privacy: accounting of Poisson samples, and encoding of exact sums of clipped records."""
