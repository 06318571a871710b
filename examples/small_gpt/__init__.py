"""A small GPT and its text, for examples/train.py."""
