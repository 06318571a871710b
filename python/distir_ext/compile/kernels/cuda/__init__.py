"""Kernels of NVIDIA's GPUs.

Attention and products on tensor cores, and what their sources and constants need.
"""
