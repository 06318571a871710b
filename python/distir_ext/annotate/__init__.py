"""Shardings that users state: plans, marks, constraints, mutators and manual regions."""

from distir_ext.annotate.donation import donate
from distir_ext.annotate.patterns import AnnotateSharding, Entries, Plan, annotate

__all__ = ["AnnotateSharding", "Entries", "Plan", "annotate", "donate"]
