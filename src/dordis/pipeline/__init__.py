"""Pipelined rounds: chunks overlap on clients, network and server.  Stages, performance model, planner, executor."""
