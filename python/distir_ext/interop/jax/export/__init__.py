"""Exports a lowered program to StableHLO, traced by JAX.

Functions that call themselves become loops.
"""
