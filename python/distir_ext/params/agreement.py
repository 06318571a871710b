"""Checks that several hosts have equal files of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distir_ext.params.stored_array import Stored, StoredArray, StoredShards


def agreed(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Stored]:
    """The arrays that all hosts have, by name.

    The headers of the files are compared: names, shapes, dtypes and places. Elements are not read.

    Args:
        answers: By host ``{"params": arrays by name}``, or ``{"refused": why, "of_system": whether
            it is an error of the system}``.

    Raises:
        OSError: a host cannot read a file; names host and file.
        ValueError: a file is damaged, or hosts have different ones.
    """
    for host, answer in answers.items():
        if "refused" in answer:
            kind = OSError if answer["of_system"] else ValueError
            raise kind(f"on host {host}: {answer['refused']}")
    (first, reference), *others = answers.items()
    expected: dict[str, Stored] = reference["params"]
    for host, answer in others:
        found: dict[str, Stored] = answer["params"]
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                raise ValueError(
                    f'hosts have different weights "{name}": {_describe(expected.get(name))} on '
                    f"host {first}, {_describe(found.get(name))} on host {host}"
                )
    return expected


def _describe(array: Stored | None) -> str:
    if array is None:
        return "none"
    text = f"{array.dtype} {list(array.shape)} in {array.path}"
    if isinstance(array, StoredArray):
        return f"{text} at byte {array.offset}"
    assert isinstance(array, StoredShards)
    return f"{text} of {len(array.pieces)} pieces"
