"""What this machine has.

Its cores, the target of its CPU, BLAS, CUDA's compiler and NVIDIA's libraries.
"""
