"""Language models from counts: clients count words in a first pass, words and pairs of frequent words in a second."""
