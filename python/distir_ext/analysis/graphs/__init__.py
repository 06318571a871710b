"""Programs as graphs, and as text of Graphviz."""
