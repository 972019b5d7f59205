"""Chunks of a round overlap on clients, network and server: stages, their duration, how many chunks, running them."""
