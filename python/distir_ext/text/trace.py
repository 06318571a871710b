"""Writes Chrome's Trace Event Format, which Perfetto and TensorBoard read.

One JSON object with a list ``traceEvents``: names of processes (devices) and threads (streams), and
complete events ("X") with times in microseconds ("Trace Event Format", Duffy and others).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

THREADS = {"compute": 0, "communication": 1}
"""The thread of a stream."""

MICROSECONDS = 1e6
"""Microseconds in a second."""


def write_rows(
    path: str | PathLike[str], about: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Writes a trace, row by row.

    Args:
        path: A file that is made or replaced; compressed if its name ends with ``.gz``.
        about: Subject of the trace.
        rows: Its events.

    Raises:
        OSError: The file cannot be written.
    """
    head = {"displayTimeUnit": "ms", "otherData": dict(about)}
    target = Path(path)
    with gzip.open(target, "wt") if target.suffix == ".gz" else target.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [')
        separator = "\n"
        for row in rows:
            file.write(separator + json.dumps(row))
            separator = ",\n"
        file.write("\n]}\n")


def name_rows(devices: Iterable[int]) -> Iterator[dict[str, Any]]:
    """The names of devices and of their streams."""
    for device in devices:
        names = {"process_name": f"device {device}", "process_sort_index": device}
        for what, value in names.items():
            key = "sort_index" if what.endswith("index") else "name"
            yield {"ph": "M", "pid": device, "name": what, "args": {key: value}}
        for stream, thread in THREADS.items():
            for what, key, name in (
                ("thread_name", "name", stream),
                ("thread_sort_index", "sort_index", thread),
            ):
                yield {"ph": "M", "pid": device, "tid": thread, "name": what, "args": {key: name}}


def event_row(
    device: int,
    stream: str,
    name: str,
    category: str,
    start: float,
    duration: float,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """A complete event.

    Args:
        device: Its id.
        stream: ``"compute"`` or ``"communication"``.
        name: Label of the event.
        category: Category for filters, as ``"kernel"``.
        start: In seconds.
        duration: In seconds.
        details: Entries shown when it is selected.
    """
    return {
        "ph": "X",
        "pid": device,
        "tid": THREADS[stream],
        "name": name,
        "cat": category,
        "ts": start * MICROSECONDS,
        "dur": duration * MICROSECONDS,
        "args": dict(details),
    }
