"""Converts a worker's program of Relax to a program of JAX."""
