"""How hints are found in programs, and written into them: products, layers, blocks of weights."""
