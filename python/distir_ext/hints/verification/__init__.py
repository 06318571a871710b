"""Verification of hints: tiny models, sharded and unsharded, are compared.

Results and the communication of each layer are checked against textbooks.
"""
