"""Hardware and libraries of this machine.

Its cores, the target of its CPU, BLAS, CUDA's compiler and NVIDIA's libraries.
"""
