"""Programs as TVM will run them, after fusion and memory planning.

They are lists of steps: kernels, collectives, calls and branches.
"""
