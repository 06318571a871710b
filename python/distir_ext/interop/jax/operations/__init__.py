"""Operations of StableHLO as Relax: a file for each family, with handlers that enter themselves.

``table.py`` above holds them.
"""
