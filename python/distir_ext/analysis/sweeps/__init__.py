"""Which mesh and plan is best for a model on a cluster.

Configurations are computed in several processes; functions that they share are planned once.
"""
