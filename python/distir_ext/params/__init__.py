"""Weights on disk and in memory: a module per file format, and the part that each worker takes.

Worker processes import it, so that nothing of TVM is imported here.
"""
