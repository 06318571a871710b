"""Demonstrations that run from TVMScript to numbers on CPU workers: ``distir demo``."""
