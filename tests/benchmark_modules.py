"""Benchmarks as modules that tests read."""

import contextlib
import importlib
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@contextlib.contextmanager
def benchmark_module(name):
    """A benchmark; its package ``models`` is not the folder of tests of that name."""

    def loaded():
        return [each for each in sys.modules if each.split(".")[0] in ("models", name)]

    others = {each: sys.modules.pop(each) for each in loaded()}
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))
        for each in loaded():
            del sys.modules[each]
        sys.modules.update(others)
