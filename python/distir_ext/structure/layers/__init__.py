"""Layers of a model: attention, feed-forward, experts, adapters.

They are found by the products with weights and by how values flow between these.
"""
