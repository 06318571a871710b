"""Signatures of executables: parameters, shardings, programs of devices, blocks of arrays.

Worker processes read it too, so that nothing of TVM is imported here.
"""
