"""Redistributions that nobody asked for: their causes, their costs, and what avoids them."""
