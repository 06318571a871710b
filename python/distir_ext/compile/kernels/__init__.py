"""Kernels in place of TVM's: legalisations that compute what NumPy and JAX do, and schedules.

``legalize`` says which operators get which.
"""
