"""Who takes part and on whose terms: the registry, the beacon, client selection, the owner's policy and count."""
