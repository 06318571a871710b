"""Workers on several hosts: their configuration, ``distir host``, and messages between hosts.

Copies of a script that a launcher has started, and nodes of a Ray cluster, are hosts, too.
"""
