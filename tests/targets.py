"""Target that the programs of tests are compiled for."""

import tvm

QUICK = tvm.target.Target({"kind": "llvm", "opt-level": 0})
"""Compiling is most of the time of a test that runs a small program."""
