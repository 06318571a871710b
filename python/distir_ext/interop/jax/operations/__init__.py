"""Translates operations of StableHLO to Relax: a file per family, with handlers for ``table``.

``table.py`` in the folder above holds them.
"""
