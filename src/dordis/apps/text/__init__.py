"""Language models that are counted, not trained: words in a first pass over the clients, pairs of them in a second."""
