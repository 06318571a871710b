"""Checks files of shared libraries, so that a truncated one is an error and not a crash.

The system's loader maps what a library's header says, and dies of it (SIGBUS) where the file ends
before that. To load a library is to run it; a right one of a stranger is no less dangerous.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

from distir_ext.text.files.json_file import require
from distir_ext.text.files.regular_file import open_file

_ELF = b"\x7fELF"

# Where the header has the offset of the segments, that of the sections, and the size and number of
# either; the format of a segment up to its size in the file, and where its offset and that are.
# By class: 32 and 64 bits.
_HEADERS = {
    1: ("II", 28, 42, "IIIII", (1, 4)),
    2: ("QQ", 32, 54, "IIQQQQ", (2, 5)),
}


# In which so many bytes describe a segment: a table of them is as small as there can be segments.
_SEGMENT_BYTES = {1: 32, 2: 56}


def check_library(path: Path) -> None:
    """Looks whether a file is a whole library, as far as its headers say.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none, or is cut off; names it.
    """
    with open_file(path) as file:
        size = file.seek(0, 2)
        if sys.platform != "linux":
            require(size > 0, f"{path} is empty, not a library")
            return
        file.seek(0)
        header = file.read(64)
        require(header[:4] == _ELF, f"{path} is {size} bytes of something else than a library")
        try:
            offsets, at, counts_at, form, (offset_at, bytes_at) = _HEADERS[header[4]]
            order = {1: "<", 2: ">"}[header[5]]
            segments, sections = struct.unpack_from(order + offsets, header, at)
            each, count, each_section, num_sections = struct.unpack_from(
                order + "HHHH", header, counts_at
            )
            require(each == _SEGMENT_BYTES[header[4]], "a segment is described in other bytes")
            ends = [segments + each * count, sections + each_section * num_sections]
            file.seek(segments)
            table = file.read(each * count)
            for index in range(count):
                segment = struct.unpack_from(order + form, table, index * each)
                ends.append(segment[offset_at] + segment[bytes_at])
        except (KeyError, IndexError, struct.error, OverflowError, ValueError, OSError) as error:
            raise ValueError(f"{path} is damaged: its header is not that of a library") from error
        require(
            max(ends) <= size, f"{path} is cut off: it has {size} bytes of a library of {max(ends)}"
        )


def load_library(path: str | os.PathLike[str]) -> Any:
    """The module of an exported library.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not a library that TVM has exported, or it is damaged; names it.
    """
    import tvm

    if Path(path).suffix == ".so":
        check_library(Path(path))
    else:
        open_file(Path(path)).close()
    try:
        return tvm.runtime.load_module(os.fspath(path))
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise ValueError(f"{path} cannot be loaded: {reason[-1] if reason else error!r}") from error
