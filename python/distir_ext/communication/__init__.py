"""The collectives of lowered programs, with the mesh axes that their groups lie along.

Bytes are counted for one device, by the ring algorithms.
"""
