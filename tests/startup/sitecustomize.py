"""Keeps TVM from importing torch in the processes that tests start.

TVM and tvm-ffi import torch where it is installed, which takes twice as long as their own modules.
A program that imports torch itself has it, as has the process that runs the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

PACKAGES = {"tvm", "tvm_ffi"}


class TorchFinder:
    """Finds no torch for modules of TVM."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Leaves the search to others.

        Raises:
            ImportError: a module of TVM imports torch.
        """
        if name != "torch":
            return
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and PACKAGES & set(Path(frame.f_code.co_filename).parts):
            raise ImportError("TVM does without torch here")


sys.meta_path.insert(0, TorchFinder())
