"""Frames and connections: streams of bytes, TLS, tokens, handshakes.

Knows nothing of who sends what.
"""
