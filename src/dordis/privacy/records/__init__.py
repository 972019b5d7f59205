"""Records as the unit of privacy: accounting of Poisson samples, exact sums of clipped records, their encoding."""
