"""Sharding hints, found in programs and written into them: products, layers, weight blocks."""
