"""Programs as graphs of operators, with calls and redistributions.

``dot`` writes them for Graphviz.
"""
