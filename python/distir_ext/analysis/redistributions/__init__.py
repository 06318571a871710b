"""Redistributions that no annotation asks for: causes, costs, and ways to avoid them."""
