"""Checks and reads the files that command-line arguments name: programs, plans, configurations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from distir_ext.text.errors.plan_names import ELSEWHERE, NAMED
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.files.json_file import read_json
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, read_file

# Arguments that name files which are read, and what messages call these.
_PROGRAMS = ("program", "others")
_READ = {
    **dict.fromkeys((*_PROGRAMS, "imports"), "file"),
    **dict.fromkeys(("plan", "with_plan"), "plan"),
    "config": "configuration",
    "values": "file of arrays",
    "cluster": "cluster",
}


def existing(name: str, what: str = "file") -> Path:
    """The path of a file.

    Args:
        name: As the user states it.
        what: Kind of file, for the message.

    Raises:
        FileNotFoundError: There is none; names those of its folder that are like it.
    """
    path = Path(name)
    if path.exists():
        return path
    folder = path.parent
    near = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    near += NAMED if what == "plan" else ()
    raise FileNotFoundError(f"there is no {what} {path}{did_you_mean(path.name, near)}")


def is_plan_name(text: str) -> bool:
    """Returns whether an argument is the name of a plan, and not of a file."""
    return text in (*NAMED, *ELSEWHERE) and not Path(text).exists()


def split_program(text: str) -> tuple[str, str]:
    """The file of a program, and what is named in it: ``model.py:MLP``."""
    file, colon, name = text.rpartition(":")
    if colon and not Path(text).exists() and (name.isidentifier() or not name):
        return file, name
    return text, ""


def check_files(options: argparse.Namespace) -> None:
    """Finds out whether the files are there that a command will read.

    Raises:
        FileNotFoundError: One is not.
    """
    for argument, what in _READ.items():
        stated = getattr(options, argument, None) or ()
        if argument == "plan" and isinstance(stated, str) and options.mesh is None:
            continue  # which the command refuses
        for each in [stated] if isinstance(stated, str) else stated:
            text = each if isinstance(each, str) else each[-1]  # NAME=FILE
            if argument in _PROGRAMS:
                if getattr(options, "shape", None) is not None:  # it is a sharding of this shape
                    continue
                text = split_program(text)[0]
            if what == "plan" and is_plan_name(text):
                continue
            if argument != "cluster" or text.endswith(".json"):
                existing(str(text), what)


def json_object(name: str, what: str) -> dict[str, Any]:
    """Reads a JSON object from a file, which may be from an untrusted source.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no file, is too large, or has no JSON object in it.
    """
    return read_json(read_file(existing(name, what), MOST_INDEX_BYTES), f"the {what} {name}")
