"""Translates operations of StableHLO to operators of Relax."""
