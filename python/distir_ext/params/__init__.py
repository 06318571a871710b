"""Weights on disk and in memory: one file per format, and which part of them a worker takes.

Worker processes import it, so that nothing of TVM is imported here.
"""
