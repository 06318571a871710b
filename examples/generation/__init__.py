"""Greedy generation with a model whose caches of keys and values stay on the workers."""
