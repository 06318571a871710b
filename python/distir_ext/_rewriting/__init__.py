"""Functions of Relax written anew in Python, where calls become others."""
