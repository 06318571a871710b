"""Whether hints are right for a model: tiny models, sharded and unsharded, compared.

Results and the communication of each layer are checked against textbooks.
"""
