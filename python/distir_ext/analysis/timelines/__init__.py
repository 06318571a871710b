"""Timelines of a simulation: their events, sums and critical path, and traces of them.

An event is a kernel or a collective on one device.
"""
