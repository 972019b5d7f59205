"""An audit: run whole rounds, attack them, and see whether they give away more than they claim.

Two tests stand side by side.  Canaries prove that epsilon is at least so large, whatever the reason, but find noise
only if it is far too small.  The variance of the noise, on known inputs, is compared with what the round states of it:
that finds noise which is wrong by a few per cent, if it is wrong in its variance.
"""

from dordis.apps.audit.auditor import LEVEL, Audit, audit, toy_design

__all__ = ["LEVEL", "Audit", "audit", "toy_design"]
