"""Files that arguments name."""

from __future__ import annotations

from pathlib import Path

from distir_ext._spelling import did_you_mean


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
