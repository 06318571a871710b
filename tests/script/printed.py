"""Runs printed modules."""

import importlib.util
import sys

import pytest


def run_file(text, path):
    """Runs a Python file, and returns the class that it defines as Module."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("printed", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # TVM looks for the source of a class in the module that it is in.
        patch.setitem(sys.modules, "printed", module)
        spec.loader.exec_module(module)
    return module.Module
