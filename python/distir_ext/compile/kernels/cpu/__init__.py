"""Kernels of CPUs.

Schedules, functions such as exp and tanh that LLVM vectorises, and kernels that are compiled once.
"""
