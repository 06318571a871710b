"""Redistributions that nobody asked for: what they cost, and annotations that avoid them.

Behind ``dx.analysis.reshards`` and ``dx.lower(reshards=...)``.
"""
