"""What tests of passes, of partitioned programs and of communication backends need."""

from distir_ext.testing.phases import PHASES, verify, violations

__all__ = ["PHASES", "verify", "violations"]
