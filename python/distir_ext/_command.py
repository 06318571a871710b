"""The command ``distir`` starts without TVM, which takes a second to import.

Importing the package loads the native library into TVM. In the process of the command that waits
until a command needs it, so that ``distir --help`` answers at once.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_NAME = "distir"


def _is_running() -> bool:
    if sys.argv[:1] == ["-m"]:  # while `python -m` imports the package, before it knows the file
        after = sys.orig_argv[sys.orig_argv.index("-m") + 1 :]
        return after[:1] == [__package__]
    # A process that the command starts may have its arguments, but was not started with them.
    return Path(sys.argv[0] if sys.argv else "").name == _NAME and sys.argv[0] in sys.orig_argv


waits = _is_running()
"""Whether this process is the command, and has not needed the package so far."""


def load_package() -> None:
    """Imports what the command has put off: TVM, the native library, all public names."""
    global waits
    if waits:
        waits = False
        importlib.reload(sys.modules[__package__])
