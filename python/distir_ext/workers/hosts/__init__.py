"""Workers on several hosts: what users state, ``distir host``, and what passes between hosts.

Copies of a script that a launcher has started, and nodes of a Ray cluster, are hosts, too.
"""
