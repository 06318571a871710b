"""Sweeps over meshes and plans for a model on a cluster.

Configurations are computed in several processes; functions that they share are planned once.
"""
