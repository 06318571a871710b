"""Signatures of executables and modules: parameters, results and devices."""
