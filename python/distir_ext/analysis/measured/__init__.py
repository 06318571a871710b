"""Measured times of kernels, collectives and hosts.

They are compared with what ``estimate`` and ``simulate`` predict.
"""
