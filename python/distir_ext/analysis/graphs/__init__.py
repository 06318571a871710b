"""Programs as graphs: what calls what, what is redistributed between them.

``dot`` writes them for Graphviz.
"""
