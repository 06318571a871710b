"""Operators and blocks in torch and in JAX."""
