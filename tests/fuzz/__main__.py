"""``python -m tests.fuzz [seconds] [target ..]``: goes on until something is found or time is over.

An input that breaks a parser lies in ``build/fuzz`` then; mended, it goes into the corpus.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import distir_ext  # noqa: F401  (loads the native library)

from .mutation import inputs
from .targets import TARGETS, corpus_of, run

_FOUND = Path("build/fuzz")
_INPUTS_PER_SEED = 300


def main(seconds: float, names: list[str]) -> None:
    """Fuzzes targets in turn."""
    _FOUND.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    done = 0
    seed = time.time_ns()
    for name in itertools.cycle(names):
        seed += 1
        for data in inputs(corpus_of(name), _INPUTS_PER_SEED, seed):
            (_FOUND / name).write_bytes(data)  # what ends the process stays there
            run(name, data)
            done += 1
            if time.monotonic() > deadline:
                print(f"{done} inputs, nothing found")
                return


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 60.0, sys.argv[2:] or list(TARGETS))
