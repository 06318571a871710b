"""Opens untrusted files: only regular files, and no links that lead out of their folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from distir_ext.text.files.json_file import require
from distir_ext.text.printable import printable_line

# Of an index or a header, in bytes; the limit that the safetensors format's own reader has.
MOST_INDEX_BYTES = 100_000_000


def open_file(path: Path) -> BinaryIO:
    """Opens a file to be read.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is a pipe, a device, a socket or a directory, of which reading may never end.
    """
    # A pipe that nobody writes to would wait here.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        require(is_file, f"{path} is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, most_bytes: int) -> bytes:
    """All of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, or is larger than ``most_bytes``.
    """
    too_large = f"{path} has more than {most_bytes} bytes"
    with open_file(path) as file:
        require(os.fstat(file.fileno()).st_size <= most_bytes, too_large)
        content = file.read(most_bytes + 1)
    require(len(content) <= most_bytes, too_large)
    return content


def beside(index: Path, file: object) -> Path:
    """A file that an index names; it has to lie in the index's own directory.

    Raises:
        ValueError: it is the name of something else, or a link to it.
    """
    is_name = isinstance(file, str) and file not in ("", ".", "..") and Path(file).name == file
    if not is_name or printable_line(str(file)) != file:
        raise ValueError(
            f"{index} is damaged: {str(file)[:80]!r} is not the name of a file beside it"
        )
    assert isinstance(file, str)
    path = index.parent / file
    check_link(path)
    return path


def check_link(path: Path) -> None:
    """Refuses a file of a directory that is a link to what lies elsewhere.

    The caches of Hugging Face are made of links from ``snapshots/<revision>/`` to ``blobs/`` beside
    ``snapshots``, which are files of the checkpoint.

    Raises:
        ValueError: it leaves the directory; names both.
    """
    if not path.is_symlink():
        return
    folder = path.parent.resolve()
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:  # Python before 3.13 raises either
        raise ValueError(f"{path} is a link that leads nowhere: {error}") from error
    hubs = [each.parent / "blobs" for each in folder.parents if each.name == "snapshots"]
    require(
        any(target.is_relative_to(each) for each in (folder, *hubs)),
        f"{path} is a link to {target}, which is not in the directory of the checkpoint",
    )
