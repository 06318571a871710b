"""Compiles an annotated module to an executable for all workers."""

from distir_ext.compile.entry import build, lower

__all__ = ["build", "lower"]
