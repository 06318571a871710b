"""Inputs of calls that are on disk: each worker reads the part that it needs, before the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distir_ext._params.stored_array import StoredBox
from distir_ext._workers.base import Workers


def read_stored(workers: Workers, arguments: Sequence[dict[int, list[Any]]]) -> None:
    """Puts what workers have read in the place of boxes of arrays on disk.

    Args:
        workers: Who read.
        arguments: Per rank and virtual stage those of the program; boxes may be inside of lists.

    Raises:
        WorkerError: a file cannot be read any more.
    """
    boxes = [{id(box): box for each in mine.values() for box in _boxes(each)} for mine in arguments]
    if not any(boxes):
        return
    read = workers.hold("read inputs", [list(mine.values()) for mine in boxes])
    for mine, asked, found in zip(arguments, boxes, read, strict=True):
        tensors = dict(zip(asked, found, strict=True))
        for index, values in mine.items():
            mine[index] = _replaced(values, tensors)


def _boxes(value: Any) -> Iterator[StoredBox]:
    if isinstance(value, list):
        for each in value:
            yield from _boxes(each)
    elif isinstance(value, StoredBox):
        yield value


def _replaced(value: Any, tensors: Mapping[int, Any]) -> Any:
    if isinstance(value, list):
        return [_replaced(each, tensors) for each in value]
    return tensors[id(value)] if isinstance(value, StoredBox) else value
