"""Makes temporary folders; if none can be written, the error says what to set."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is there until the block ends.

    Raises:
        OSError: None can be written; says what to set.
    """
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError as error:
        raise _unusable(error) from error
    with folder as path:
        yield Path(path)


def lasting_folder(prefix: str) -> Path:
    """A folder that only its owner may use, and that whoever asks for it removes.

    Args:
        prefix: Prefix of its name.

    Raises:
        OSError: None can be written; says what to set.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise _unusable(error) from error


def _unusable(error: OSError) -> OSError:
    reason = error.strerror or str(error)
    return type(error)(
        error.errno or errno.ENOENT,
        "worker processes need a folder for temporary files, and none can be written to; set the "
        f"environment variable TMPDIR to one that can ({reason})",
    )
