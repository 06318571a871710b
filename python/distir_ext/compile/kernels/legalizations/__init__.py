"""Legalisations in place of TVM's, for all targets.

They compute what NumPy, JAX and torch do where TVM's kernels do not, or where it has none.
"""
