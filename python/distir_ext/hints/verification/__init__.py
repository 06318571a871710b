"""Verifies hints on tiny models: ``distir verify-hints``."""
