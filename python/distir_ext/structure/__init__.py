"""Structure of programs: products, layers, heads, experts and fused weights.

All of it is found in the program itself, whoever wrote it and whatever its values are called.
"""
