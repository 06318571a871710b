"""Redistributions that no annotation asks for: their costs, and annotations that avoid them.

Behind ``dx.analysis.reshards`` and ``dx.lower(reshards=...)``.
"""
