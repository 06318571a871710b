"""Errors: checks of arguments, suggested names, and shortened tracebacks."""
