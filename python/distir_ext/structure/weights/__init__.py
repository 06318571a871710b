"""Weights that are fused, or of many experts.

They are found by how the program splits them, and rewritten so that shards are whole blocks.
"""
