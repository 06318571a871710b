"""Rank and size of this process among the copies of a script that a launcher has started."""
