"""Audits: run whole rounds in a simulation, and test the claimed guarantee in two ways.

The first test is an attack on canaries, clients whose input is either zero or as large as possible: the adversary
guesses which.  Its success proves a lower bound on epsilon, but detects only noise that is far too small.  The second
test subtracts the inputs, which the auditor knows, from the sum, and compares the variance of the remaining noise with
the variance that the round states.  From 1,024 noise samples it detects a variance that is 25 % too large, from 30,000
samples one that is 5 % too large.
"""

from dordis.apps.audit.auditor import LEVEL, Audit, audit, audit_records, toy_design, toy_record_design

__all__ = ["LEVEL", "Audit", "audit", "audit_records", "toy_design", "toy_record_design"]
