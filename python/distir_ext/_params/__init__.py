"""Weights on disk: what is in a file of each format, and arrays that workers read parts of."""
