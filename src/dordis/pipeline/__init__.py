"""Drivers of rounds, also pipelined: chunks overlap on clients, network and server.  Performance model and planner."""
