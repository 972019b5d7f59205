"""Language models from counts: clients count words in a first pass, and words and word pairs in a second pass."""
