"""Sections of ``distir gpu-check``: one file each, with a function that yields findings.

``run`` lists the sections; ``machine`` is what they run on, real GPUs or what stands in for them.
"""
