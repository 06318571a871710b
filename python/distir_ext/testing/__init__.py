"""Checks for tests of passes, partitioned programs and communication backends."""

from distir_ext.testing.phases import PHASES, verify, violations

__all__ = ["PHASES", "verify", "violations"]
