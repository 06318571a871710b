"""Errors and logs.

Tracebacks show the frames of the user's program, and messages name what may have been meant.
"""
