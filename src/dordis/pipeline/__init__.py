"""Drivers that run the steps of a round, one by one or pipelined, and the choice of a round's number of chunks."""
