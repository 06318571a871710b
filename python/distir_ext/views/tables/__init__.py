"""Tables of results.

One file for the results of one analysis; ``views/results.py`` attaches them.
"""
