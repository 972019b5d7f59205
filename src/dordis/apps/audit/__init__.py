"""Audits: run and attack whole rounds, and compare what leaks with the claimed guarantee.

Two tests complement each other.  An attack with canaries proves a lower bound on epsilon, but detects only noise that
is far too small.  The second test subtracts the inputs, which the auditor knows, and compares the variance of the noise
with the variance that the round states.  From 1,024 noise samples it detects a variance that is 25 % too large, from
30,000 samples one that is 5 % too large.
"""

from dordis.apps.audit.auditor import LEVEL, Audit, audit, audit_records, toy_design, toy_record_design

__all__ = ["LEVEL", "Audit", "audit", "audit_records", "toy_design", "toy_record_design"]
