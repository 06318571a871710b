"""Files that arguments name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distir_ext._errors.spelling import did_you_mean
from distir_ext._params.json_file import read_json
from distir_ext._params.regular_file import MOST_INDEX_BYTES, read_file


def existing(name: str, what: str = "file") -> Path:
    """The path of a file.

    Args:
        name: As the user states it.
        what: What it is, for the message.

    Raises:
        FileNotFoundError: There is none; names those of its folder that are like it.
    """
    path = Path(name)
    if path.exists():
        return path
    folder = path.parent
    near = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    raise FileNotFoundError(f"there is no {what} {path}{did_you_mean(path.name, near)}")


def json_object(name: str, what: str) -> dict[str, Any]:
    """What a file of JSON says, which somebody else may have written.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no file, is too large, or has no JSON object in it.
    """
    return read_json(read_file(existing(name, what), MOST_INDEX_BYTES), f"the {what} {name}")
