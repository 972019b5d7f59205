"""The selection of a round's clients: beacon, selection methods, and the largest number of colluders in a selection."""
