"""Demonstrations that run from TVMScript to numbers on CPU workers: ``distir demo``.

Each case is a model, a mesh and a plan, and is compared with the unsharded program.
"""
