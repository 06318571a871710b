"""Connections between hosts: sockets with deadlines, TLS, and how both ends prove the token."""
