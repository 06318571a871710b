"""From operations of StableHLO to operators of Relax."""
