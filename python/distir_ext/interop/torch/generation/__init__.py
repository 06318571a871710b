"""Generation of tokens by models of transformers: caches, steps, and what calls them."""
