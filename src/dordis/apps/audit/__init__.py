"""Audits: run and attack whole rounds, and compare what leaks with the claimed guarantee.

Two tests complement each other.  Canaries prove a lower bound on epsilon, but detect only noise that is far too small.
The variance of the noise, on known inputs, is compared with the variance that the round states: this detects noise
that is wrong by a few per cent.
"""

from dordis.apps.audit.auditor import LEVEL, Audit, audit, audit_records, toy_design, toy_record_design

__all__ = ["LEVEL", "Audit", "audit", "audit_records", "toy_design", "toy_record_design"]
